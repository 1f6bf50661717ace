"""Event loop whose clock jumps to the next timer, with Unix sockets inside it."""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import random
from collections.abc import Callable
from typing import Any, Final

__all__ = ["BEGUN_S", "Endless", "Loop", "Pipe", "Streams", "Stuck", "Transport"]

BEGUN_S: Final = 1000.0  # first time of the world's clock
_MOST_TURNS = 2_000_000


class Stuck(Exception):
    """No event is left, and the run has not ended."""


class Endless(Exception):
    """The loop has exceeded `_MOST_TURNS`."""


class Streams:
    """Random streams by purpose from one seed: a plan without a fault draws the rest as before."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: dict[str, random.Random] = {}

    def __call__(self, name: str) -> random.Random:
        """Return the stream of a name."""
        if name not in self._streams:
            digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
            self._streams[name] = random.Random(int.from_bytes(digest[:8], "big"))
        return self._streams[name]


class Loop(asyncio.BaseEventLoop):
    """Event loop without a selector: only timers and ready callbacks.

    Attributes:
      now_s: the world's clock, in seconds.
      turns: turns so far.
      trace: SHA-256 of all events with their times, such as arrivals of bytes.
      lines: the events of `trace` as text; None if they are not kept.
      errors: unhandled exceptions.
    """

    def __init__(
        self, draw: Streams, *, latency: Callable[[random.Random], float], cuts: float
    ) -> None:
        """Begin at `BEGUN_S`.

        Args:
          draw: random streams of the world.
          latency: draws the seconds that a piece of bytes takes.
          cuts: share of writes that arrive in two pieces.
        """
        super().__init__()
        self.draw, self.latency, self.cuts = draw, latency, cuts
        self.now_s, self.turns = BEGUN_S, 0
        self.servers: dict[str, Callable[[], Any]] = {}
        self.pipes: list[Pipe] = []
        self.trace = hashlib.sha256()
        self.lines: list[str] | None = None
        self.errors: list[str] = []
        self._clock_resolution = 1e-9
        self.set_exception_handler(self._error)

    def _error(self, _loop: Any, context: dict[str, Any]) -> None:
        self.errors.append(f"{context['message']}: {context.get('exception')!r}")

    def note(self, line: str) -> None:
        """Add an event to the trace."""
        text = f"{self.now_s:.6f} {line}"
        self.trace.update(text.encode() + b"\n")
        if self.lines is not None:
            self.lines.append(text)

    def time(self) -> float:
        """Return the world's time in seconds."""
        return self.now_s

    def _process_events(self, event_list: Any) -> None: ...

    def _write_to_self(self) -> None: ...

    def _run_once(self) -> None:
        self.turns += 1
        if self.turns > _MOST_TURNS:
            raise Endless
        inner: Any = self
        scheduled, ready = inner._scheduled, inner._ready
        while scheduled and scheduled[0]._cancelled:
            inner._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False
        if not ready and not inner._stopping:
            if not scheduled:
                raise Stuck
            self.now_s = max(self.now_s, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self.now_s:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if handle._cancelled:
                inner._timer_cancelled_count -= 1
            else:
                ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    async def create_unix_server(  # type: ignore[override]
        self, factory: Any, path: Any = None, **_: Any
    ) -> Any:
        """Register a server under its path."""
        self.servers[str(path)] = factory
        return _Server(self, str(path))

    async def create_unix_connection(  # type: ignore[override]
        self, factory: Any, path: Any = None, **_: Any
    ) -> Any:
        """Connect to a server inside the loop."""
        protocol = factory()
        theirs = self.open(str(path))
        ours = Transport(self, protocol)
        ours.out = Pipe(self, "front>", theirs.give, theirs.close)
        theirs.out = Pipe(self, ">front", ours.give, ours.close)
        protocol.connection_made(ours)
        return ours, protocol

    def open(self, path: str) -> Transport:
        """Return the server's end of a new connection."""
        if path not in self.servers:
            raise ConnectionRefusedError(path)
        protocol = self.servers[path]()
        transport = Transport(self, protocol)
        self.call_soon(protocol.connection_made, transport)
        return transport

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        """Run a thread's work at once, except a wait for the end of a process."""
        del executor
        target, *more = getattr(func, "args", (func,))
        owner = getattr(target, "__self__", None)
        if owner is not None and hasattr(owner, "ended_by"):
            return owner.ended_by(*more)
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 (it goes to the awaiting task)
            future.set_exception(error)
        return future


class _Server:
    def __init__(self, loop: Loop, path: str) -> None:
        self._loop, self._path = loop, path

    def close(self) -> None:
        self._loop.servers.pop(self._path, None)


class Pipe:
    """One direction of a connection: bytes in order, delayed and in pieces, then the end."""

    def __init__(
        self, loop: Loop, name: str, give: Callable[[bytes], None], end: Callable[[], None]
    ) -> None:
        self._loop, self.name, self._give, self._end = loop, name, give, end
        self._waiting: list[tuple[bytes | None, asyncio.TimerHandle]] = []
        self._last_s = 0.0
        self.is_closed = False
        self.stalled_s = 0.0  # nothing arrives before this time
        loop.pipes.append(self)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self.is_closed or not data:
            return
        rng = self._loop.draw("cut/" + self.name)
        pieces = [data]
        if len(data) > 1 and rng.random() < self._loop.cuts:
            at = rng.randrange(1, len(data))
            pieces = [data[:at], data[at:]]
        for piece in pieces:
            self._later(piece)

    def close(self) -> None:
        """Send the end."""
        if not self.is_closed:
            self.is_closed = True
            self._later(None)

    def cut(self, rng: random.Random) -> None:
        """Lose the end of the bytes in transit, as if the writer died within a write."""
        while self._waiting and rng.random() < 0.5:
            data, handle = self._waiting.pop()
            handle.cancel()
            if data is None or len(data) < 2:
                continue
            self._later(data[: rng.randrange(1, len(data))])
            break

    def _later(self, data: bytes | None) -> None:
        loop = self._loop
        late_s = loop.latency(loop.draw("late/" + self.name))
        self._last_s = max(self._last_s, self.stalled_s, loop.now_s + late_s)
        self._waiting.append((data, loop.call_at(self._last_s, self._arrive)))

    def _arrive(self) -> None:
        data, _ = self._waiting.pop(0)
        if data is None:
            self._loop.note(f"{self.name} end")
            self._end()
        else:
            self._loop.note(f"{self.name} {len(data)} {hashlib.sha256(data).hexdigest()[:8]}")
            self._give(data)


class Transport:
    """Transport of a connection's end in the event loop."""

    out: Pipe

    def __init__(self, loop: Loop, protocol: Any) -> None:
        self._loop, self._protocol = loop, protocol
        self._is_closing = self._is_lost = False

    def set_write_buffer_limits(self, *_: Any) -> None:
        """Do nothing: there is no write buffer."""

    def is_closing(self) -> bool:
        """Return True once `close` was called."""
        return self._is_closing

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self.out.write(data)

    def close(self) -> None:
        """End the connection."""
        if not self._is_closing:
            self._is_closing = True
            self.out.close()
            self._loop.call_soon(self._lost)

    def _lost(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._protocol.connection_lost(None)

    def give(self, data: bytes) -> None:
        """Pass received bytes to the protocol."""
        if not self._is_closing and not self._is_lost:
            self._protocol.data_received(data)
