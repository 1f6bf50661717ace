"""Connection of front to scheduler, a queue per request."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from c2c.engine import messages as say
from c2c.engine.frames import Connection
from c2c.engine.front.failures import after_end

__all__ = ["MOST_WAITING", "Link"]

MOST_WAITING = 256  # answers in the queue of a client that is behind
_TURNS = 8  # loop iterations that a client may be behind and fall further behind


class _Stream:
    """Unread answers; `is_cut`: some were dropped."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[say.Answered] = asyncio.Queue()
        self.is_cut = False
        self._turn = self._turns = 0  # last iteration, and consecutive ones in which it was behind
        self._waited = 0  # queued answers at the first of these

    def is_too_slow(self, turn: int) -> bool:
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
    """Connection to the scheduler, with its requests."""

    def __init__(self, path: str, ended: Callable[[], None] = lambda: None) -> None:
        """Create a link; nothing is connected."""
        self._path, self._ended = path, ended
        self._numbers = itertools.count(1)
        self._answers: dict[int, _Stream] = {}
        self._waiting: dict[int, asyncio.Future[Any]] = {}  # answers to other messages, by number
        self._link: Connection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._turn, self._is_new_turn = 0, True  # iterations of the event loop with answers
        self.models: tuple[say.ModelInfo, ...] = ()
        self.max_open = 0  # most concurrent requests
        self.adds = False  # whether models can be added and removed
        self.starting = ""  # progress of the engine's start; "": complete
        self.has_models = asyncio.Event()
        self.is_up = False

    async def connect(self) -> None:
        """Connect, and receive models or progress."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(Connection, self._path)
        link.send(say.FrontHello())
        first = await link.next()
        if not isinstance(first, say.Models | say.Starting):
            raise ConnectionError("the scheduler's first message has neither models nor progress")
        self._link, self.is_up = link, True
        if isinstance(first, say.Models):
            self._numbers = itertools.count(first.first)
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
                waiting.set_exception(after_end("gone"))
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
                self.abort(frame.request)  # its end is an answer, too
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
        """Send a request; return its number and queue."""
        number = next(self._numbers)
        stream = self._answers[number] = _Stream()
        if self._link is None or not self.is_up:
            self._answer(say.Ended(request=number, why="gone"))
        else:
            self._link.send(say.Ask(request=number, **fields))
        return number, stream.answers

    def abort(self, request: int, *, is_done: bool = False) -> None:
        """Cancel a request, or end it at a stop string."""
        if self._link is not None and self.is_up:
            self._link.send(say.Abort(request=request, is_done=is_done))

    def drain(self, *, is_on: bool) -> None:
        """Refuse new requests, or accept them again."""
        if self._link is not None and self.is_up:
            self._link.send(say.Drain(is_on=is_on))

    def close(self) -> None:
        """Close the connection, which ends this front."""
        if self._link is not None:
            self._link.close()

    def forget(self, request: int) -> None:
        """Drop further answers to a request."""
        self._answers.pop(request, None)

    async def live(self) -> dict[str, Any]:
        """Return the current state of the engine."""
        state: dict[str, Any] = await self._answer_to(say.Watch)
        return state

    async def command(
        self, kind: type[say.Manage | say.Add | say.Remove], **fields: Any
    ) -> say.Managed:
        """Run a command for a model; return the result."""
        done: say.Managed = await self._answer_to(kind, **fields)
        return done

    async def _answer_to(self, kind: type[say.Frame], **fields: Any) -> Any:
        if self._link is None or not self.is_up:
            raise after_end("gone")
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._link.send(kind(number=number, **fields))
        try:
            return await future
        finally:
            del self._waiting[number]
