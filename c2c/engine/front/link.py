"""The front's connection to the scheduler: a queue of answers for each request."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from c2c.engine import messages as say
from c2c.engine.frames import Connection

__all__ = ["MOST_WAITING", "Link"]

MOST_WAITING = 256  # answers that a client has not taken: then it is too slow


class Link:
    """All requests of this front."""

    def __init__(self, path: str, ended: Callable[[], None] = lambda: None) -> None:
        """Take the scheduler's socket; nothing is connected.

        Args:
          path: of the socket.
          ended: is told when the connection has ended: the scheduler is gone.
        """
        self._path, self._ended = path, ended
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Queue[say.Answered]] = {}
        self._waiting: dict[int, asyncio.Future[Any]] = {}  # answers that are no request's
        self._link: Connection | None = None
        self._reading: asyncio.Task[None] | None = None
        self.models: tuple[say.ModelInfo, ...] = ()
        self.is_up = False

    async def connect(self) -> None:
        """Connect, and take in what is served."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(Connection, self._path)
        link.send(say.FrontHello())
        first = await link.next()
        if not isinstance(first, say.Models):
            raise ConnectionError("the scheduler did not say what it serves")
        self._link, self.models, self.is_up = link, first.models, True
        self._reading = asyncio.create_task(self._read(link))

    def _heard(self, frame: say.AnyFrame) -> None:
        if isinstance(frame, say.Tokens | say.Ended):
            self._answer(frame)
        elif isinstance(frame, say.Models):
            self.models = frame.models
        elif isinstance(frame, say.Managed):
            self._answer_number(frame.number, frame.refused)
        elif isinstance(frame, say.Live):
            self._answer_number(frame.number, msgspec.json.decode(frame.state))

    async def _read(self, link: Connection) -> None:
        await link.each(self._heard)
        self.is_up = False
        for request in tuple(self._answers):
            self._answer(say.Ended(request=request, why="gone"))
        for number in tuple(self._waiting):
            waiting = self._waiting.pop(number)
            if not waiting.done():
                waiting.set_exception(ConnectionError("the engine is gone"))
        self._ended()

    def _answer_number(self, number: int, answer: Any) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _answer(self, frame: say.Answered) -> None:
        queue = self._answers.get(frame.request)
        if queue is None:
            return
        if queue.qsize() >= MOST_WAITING and isinstance(frame, say.Tokens):
            self.abort(frame.request)  # its end comes as an answer, too
            return
        queue.put_nowait(frame)

    def ask(self, **fields: Any) -> tuple[int, asyncio.Queue[say.Answered]]:
        """Send a request; return its number and where its answers come."""
        number = next(self._numbers)
        queue: asyncio.Queue[say.Answered] = asyncio.Queue()
        self._answers[number] = queue
        if self._link is None or not self.is_up:
            queue.put_nowait(say.Ended(request=number, why="gone"))
        else:
            self._link.send(say.Ask(request=number, **fields))
        return number, queue

    def abort(self, request: int, *, is_done: bool = False) -> None:
        """Say that nobody wants the rest of a request."""
        if self._link is not None and self.is_up:
            self._link.send(say.Abort(request=request, is_done=is_done))

    def drain(self, *, is_on: bool) -> None:
        """Say whether new requests are turned away."""
        if self._link is not None and self.is_up:
            self._link.send(say.Drain(is_on=is_on))

    def forget(self, request: int) -> None:
        """Take no further answers of a request."""
        self._answers.pop(request, None)

    async def live(self) -> dict[str, Any]:
        """Return how things are now."""
        number = next(self._numbers)
        state: dict[str, Any] = await self._asked(number, say.Watch(number=number))
        return state

    async def manage(self, model: str, what: Literal["load", "unload", "pin", "unpin"]) -> str:
        """Have something done about a model's weights; return what kept it from that, or ""."""
        number = next(self._numbers)
        refused: str = await self._asked(number, say.Manage(number=number, model=model, what=what))
        return refused

    async def _asked(self, number: int, frame: say.Frame) -> Any:
        if self._link is None or not self.is_up:
            raise ConnectionError("the engine is gone")
        found = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._link.send(frame)
        return await found
