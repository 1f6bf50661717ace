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

MOST_WAITING = 256  # answers that a client has not taken: then it is behind
_TURNS = 8  # of this process in which one that is behind gets no further behind, or is too slow


class _Stream:
    """Answers to a request.

    Attributes:
      answers: those that the client has not taken yet.
      is_cut: whether tokens were dropped; the end then does not report a complete answer.
    """

    def __init__(self) -> None:
        self.answers: asyncio.Queue[say.Answered] = asyncio.Queue()
        self.is_cut = False
        self._turn = self._turns = 0  # the last one, and in a row in which it was behind
        self._waited = 0  # answers, at the first of these

    def is_too_slow(self, turn: int) -> bool:
        """Say so, as one more token comes; what a client has had no turn to take does not count."""
        if turn == self._turn:
            return False
        self._turn, waiting = turn, self.answers.qsize()
        self._turns = self._turns + 1 if waiting >= MOST_WAITING else 0
        if self._turns == 1:
            self._waited = waiting
        if self._turns <= _TURNS:
            return False
        self._turns = 0
        return waiting > self._waited


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
        self._answers: dict[int, _Stream] = {}
        self._waiting: dict[int, asyncio.Future[Any]] = {}  # answers that are no request's
        self._link: Connection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._turn, self._is_new_turn = 0, True  # of this process, in which answers come
        self.models: tuple[say.ModelInfo, ...] = ()
        self.max_open = 0  # requests at the same time
        self.adds = False  # whether models may be added and removed
        self.starting = ""  # how far the engine's start is
        self.has_models = asyncio.Event()
        self.is_up = False

    async def connect(self) -> None:
        """Connect, and take in what is served, or that this is not known yet."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(Connection, self._path)
        link.send(say.FrontHello())
        first = await link.next()
        if not isinstance(first, say.Models | say.Starting):
            raise ConnectionError("the scheduler did not say what it serves")
        self._link, self.is_up = link, True
        self._heard(first)
        self._reading = asyncio.create_task(self._read(link))

    def _heard(self, frame: say.AnyFrame) -> None:
        if isinstance(frame, say.Tokens | say.Ended):
            self._answer(frame)
        elif isinstance(frame, say.Starting):
            self.starting = frame.what
        elif isinstance(frame, say.Models):
            self.models, self.max_open, self.starting = frame.models, frame.max_open, ""
            self.adds = frame.adds
            self.has_models.set()
        elif isinstance(frame, say.Managed):
            self._answer_number(frame.number, frame)
        elif isinstance(frame, say.Live):
            self._answer_number(frame.number, msgspec.json.decode(frame.state))

    async def _read(self, link: Connection) -> None:
        await link.each(self._heard)
        self.is_up = False
        for request in tuple(self._answers):
            self._answer(say.Ended(request=request, why="gone"))
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("the engine is gone"))
        self._ended()

    def _answer_number(self, number: int, answer: Any) -> None:
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _answer(self, frame: say.Answered) -> None:
        stream = self._answers.get(frame.request)
        if stream is None:
            return
        if isinstance(frame, say.Tokens):
            if stream.is_cut:
                return
            if stream.is_too_slow(self._this_turn()):
                stream.is_cut = True
                self.abort(frame.request)  # its end comes as an answer, too
                return
        elif stream.is_cut and frame.why in ("stop", "length"):
            frame = say.Ended(request=frame.request, why="cancelled")
        stream.answers.put_nowait(frame)

    def _this_turn(self) -> int:
        if self._is_new_turn:
            self._turn, self._is_new_turn = self._turn + 1, False
            asyncio.get_running_loop().call_soon(self._end_turn)
        return self._turn

    def _end_turn(self) -> None:
        self._is_new_turn = True

    def ask(self, **fields: Any) -> tuple[int, asyncio.Queue[say.Answered]]:
        """Send a request; return its number and where its answers come."""
        number = next(self._numbers)
        stream = self._answers[number] = _Stream()
        if self._link is None or not self.is_up:
            self._answer(say.Ended(request=number, why="gone"))
        else:
            self._link.send(say.Ask(request=number, **fields))
        return number, stream.answers

    def abort(self, request: int, *, is_done: bool = False) -> None:
        """Say that nobody wants the rest of a request."""
        if self._link is not None and self.is_up:
            self._link.send(say.Abort(request=request, is_done=is_done))

    def drain(self, *, is_on: bool) -> None:
        """Say whether new requests are turned away."""
        if self._link is not None and self.is_up:
            self._link.send(say.Drain(is_on=is_on))

    def close(self) -> None:
        """End the connection, and so this front."""
        if self._link is not None:
            self._link.close()

    def forget(self, request: int) -> None:
        """Take no further answers of a request."""
        self._answers.pop(request, None)

    async def live(self) -> dict[str, Any]:
        """Return the current state of the engine."""
        number = next(self._numbers)
        state: dict[str, Any] = await self._asked(number, say.Watch(number=number))
        return state

    async def manage(self, model: str, what: Literal["load", "unload", "pin", "unpin"]) -> str:
        """Have something done about a model's weights; return what kept it from that, or ""."""
        number = next(self._numbers)
        wish = say.Manage(number=number, model=model, what=what)
        done: say.Managed = await self._asked(number, wish)
        return done.refused

    async def add(self, path: str, model: str) -> say.Managed:
        """Have a checkpoint served; return the outcome."""
        number = next(self._numbers)
        done: say.Managed = await self._asked(
            number, say.Add(number=number, path=path, model=model)
        )
        return done

    async def remove(self, model: str) -> say.Managed:
        """Have a model served no more; return the outcome, once its requests are over."""
        number = next(self._numbers)
        done: say.Managed = await self._asked(number, say.Remove(number=number, model=model))
        return done

    async def _asked(self, number: int, frame: say.Frame) -> Any:
        if self._link is None or not self.is_up:
            raise ConnectionError("the engine is gone")
        found = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._link.send(frame)
        try:
            return await found
        finally:
            del self._waiting[number]
