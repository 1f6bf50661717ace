"""Starts worker processes, notices when one is gone or hangs, and starts it again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from c2c.engine import messages as say
from c2c.engine.places import Place
from c2c.errors import DataError

__all__ = ["Listener", "Supervisor"]

_log = logging.getLogger("c2c.engine")
_BACKOFF_S = 0.1  # times two for each process in a row that was in vain
_MOST_BACKOFF_S = 5.0
_SPARE_S = 0.5  # after a loss, when the one that took over is at work


class Listener(Protocol):
    """Who is told of workers."""

    def started(self, place: Place) -> None:
        """A process is ready that is not the first of its place."""

    def heard(self, place: Place, frame: object) -> None:
        """A process said something."""

    def lost(self, place: Place, *, for_good: bool) -> None:
        """A process is gone."""


class Supervisor:
    """The processes of all places, and one that waits for a place to become free."""

    def __init__(
        self,
        socket: Path,
        places: Sequence[Place],
        *,
        hang_s: float,
        patience: int,
        has_spare: bool = True,
    ) -> None:
        """Take the places; nothing is started.

        Args:
          socket: that processes connect to.
          places: one a worker.
          hang_s: silence after which a process that computes is killed.
          patience: processes in a row that did nothing after which a place is given up.
          has_spare: whether a process with everything imported stands by.
        """
        self._socket, self._places = socket, places
        self._hang_s, self._patience = hang_s, patience
        self._setup: say.Setup | None = None
        self._listener: Listener | None = None
        self._hello: dict[int, asyncio.Future[say.Hello]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._watch: asyncio.Task[None] | None = None
        self._spare: subprocess.Popen[bytes] | None = None
        self._spare_place: asyncio.Future[Place] | None = None  # once it stands by
        self._has_spare = has_spare
        self._opening: Callable[[Place, say.Opening], None] = lambda _place, _frame: None

    async def start(
        self,
        setup: say.Setup,
        done: Callable[[Place, say.Hello], None],
        opening: Callable[[Place, say.Opening], None],
    ) -> None:
        """Start all processes, the first alone: it fills what the others share.

        Args:
          setup: of all.
          done: is told of each that is ready.
          opening: is told which model one is about to open.

        Raises:
          DataError: one did not come up.
        """
        self._setup, self._opening = setup, opening
        await self._first(self._places[0], done)
        await asyncio.gather(*(self._first(place, done) for place in self._places[1:]))

    async def _first(self, place: Place, done: Callable[[Place, say.Hello], None]) -> None:
        hello = self._hello[place.device] = asyncio.get_running_loop().create_future()
        self._spawn(place)
        while not hello.done():
            process = place.process
            if process is None or process.poll() is not None:
                status = None if process is None else process.returncode
                raise DataError(
                    f"worker {place.device}", f"did not start (exit status {status})",
                    "Its last words are above.",
                )  # fmt: skip
            await asyncio.wait([hello], timeout=0.05)
        done(place, hello.result())

    def watch(self, listener: Listener) -> None:
        """From now on tell a listener of everything, and start again what is lost."""
        self._listener = listener
        self._watch = asyncio.create_task(self._kill_hanging())
        if self._has_spare:
            self._later(self._stand_by(0.0))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _process(self, place: int, generation: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 (this Python, our module)
            [sys.executable, "-m", "c2c.engine.worker", str(self._socket), str(place),
             str(generation)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def _spawn(self, place: Place) -> None:
        """Give a place a process: the one that stands by, else a new one."""
        place.generation += 1
        place.has_worked = False
        spare, waiting = self._spare, self._spare_place
        if spare is not None and waiting is not None and spare.poll() is None:
            self._spare, self._spare_place = None, None
            place.process = spare
            waiting.set_result(place)
        else:
            place.process = self._process(place.device, place.generation)
        if self._has_spare and self._spare is None and self._listener is not None:
            self._later(self._stand_by(_SPARE_S))

    async def _stand_by(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if not self._is_closing and self._spare is None:
            self._spare = self._process(say.SPARE, 0)

    async def serve(
        self, hello: say.WorkerHello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Take a worker's connection until it ends."""
        if hello.place == say.SPARE:
            self._spare_place = asyncio.get_running_loop().create_future()
            place = await self._spare_place
            generation = place.generation
        else:
            place, generation = self._places[hello.place], hello.generation
        if generation != place.generation or self._setup is None:
            writer.close()  # of a process that was given up
            return
        # A process that comes back serves at once what its place was doing.
        setup = msgspec.structs.replace(self._setup, opens_all=self._listener is None)
        say.write_frame(writer, setup)
        while (frame := await say.read_frame(reader)) is not None:
            if generation != place.generation:
                break
            if isinstance(frame, say.Opening):
                self._opening(place, frame)
            elif isinstance(frame, say.Hello):
                self._ready(place, frame, writer)
            elif self._listener is not None:
                self._listener.heard(place, frame)
        writer.close()
        if generation == place.generation and not self._is_closing:
            self._lost(place)

    def _ready(self, place: Place, frame: say.Hello, writer: asyncio.StreamWriter) -> None:
        place.writer, place.heard_s = writer, time.monotonic()
        place.compiled += frame.compiled if self._listener is not None else 0
        waiting = self._hello.pop(place.device, None)
        if waiting is not None:
            waiting.set_result(frame)
        elif self._listener is not None:
            _log.warning("worker %d is back after %.1f s", place.device, frame.ready_s)
            self._listener.started(place)

    def _lost(self, place: Place) -> None:
        """Take note that a process is gone; start another, unless too many were in vain."""
        is_in_vain = place.writer is None or (place.doing is not None and not place.has_worked)
        place.in_vain = place.in_vain + 1 if is_in_vain else 0
        self._reap(place)
        if self._listener is None:
            return
        place.is_quarantined = place.in_vain >= self._patience
        _log.error(
            "worker %d is gone%s", place.device,
            f" ({place.in_vain} in a row did nothing): given up" if place.is_quarantined else "",
        )  # fmt: skip
        self._listener.lost(place, for_good=place.is_quarantined)
        if not place.is_quarantined:
            place.restarts += 1
            self._later(self._again(place, _BACKOFF_S * (2**place.in_vain - 1)))

    async def _again(self, place: Place, delay_s: float) -> None:
        """Start a process in the place of a lost one, and see that it comes up."""
        await asyncio.sleep(min(delay_s, _MOST_BACKOFF_S))
        if self._is_closing:
            return
        self._spawn(place)
        generation = place.generation
        while place.writer is None and place.generation == generation and not self._is_closing:
            if place.process is None or place.process.poll() is not None:
                self._lost(place)
                return
            await asyncio.sleep(0.1)

    async def _kill_hanging(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._hang_s / 4))
            for place in self._places:
                if place.doing is None or place.writer is None or place.process is None:
                    continue
                if time.monotonic() - place.heard_s > self._hang_s:
                    _log.error("worker %d said nothing for %.0f s", place.device, self._hang_s)
                    place.process.kill()

    @staticmethod
    def _reap(place: Place) -> None:
        if place.process is not None:
            place.process.kill()
            place.process.wait()
            place.process = None

    async def close(self) -> None:
        """End all processes."""
        self._is_closing = True
        if self._watch is not None:
            self._watch.cancel()
        if self._spare is not None:
            self._spare.kill()
            self._spare.wait()
        if self._spare_place is not None:
            self._spare_place.cancel()
        for place in self._places:
            if place.writer is not None:
                say.write_frame(place.writer, say.Stop())
        for place in self._places:
            process = place.process
            if process is None:
                continue
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, 2.0)
            self._reap(place)
