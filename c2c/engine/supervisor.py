"""Starts worker processes, notices when one is gone or hangs, and starts it again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from c2c.engine import messages as say
from c2c.engine.devices import Device, binding, bound_to
from c2c.engine.frames import Connection
from c2c.engine.others import memory_kills
from c2c.engine.places import Place
from c2c.engine.process import started
from c2c.errors import DataError

__all__ = ["Listener", "Supervisor"]

_log = logging.getLogger("c2c.engine")
_BACKOFF_S = 0.1  # times two for each process in a row that was in vain
_MOST_BACKOFF_S = 5.0
_START = 10  # times `hang_s`, unless a limit is given
_END_S = 0.5  # from a process's last word to its end
_SPARE_S = 0.5  # after a loss, when the one that took over is at work


class Listener(Protocol):
    """A listener to events of workers."""

    def started(self, place: Place) -> None:
        """A process is ready that is not the first of its place."""

    def heard(self, place: Place, frame: object) -> None:
        """A process said something."""

    def lost(self, place: Place, *, for_good: bool, by_others: bool) -> None:
        """A process is gone, and no other comes if that is for good.

        Whether others ended it, so that what it did is no reason.
        """


class Supervisor:
    """The processes of all places, and one that waits for a place to become free."""

    def __init__(
        self,
        socket: Path,
        places: Sequence[Place],
        *,
        hang_s: float,
        patience: int,
        devices: int = 1,
        has_spare: bool = True,
        start_s: float | None = None,
        worker: str = "c2c.engine.worker",
    ) -> None:
        """Take the places; nothing is started.

        Args:
          socket: that processes connect to.
          places: one a worker.
          hang_s: silence after which a process that computes is killed.
          patience: processes in a row that did nothing after which a place is given up.
          devices: that each process computes with.
          has_spare: whether a process with everything imported stands by.
          start_s: silence after which a process that is not ready yet is killed; None: ten times
            `hang_s`.
          worker: module that a process runs.
        """
        self._worker, self._devices = worker, devices
        self._socket, self._places = socket, places
        self._hang_s, self._patience = hang_s, patience
        self._start_s = _START * hang_s if start_s is None else start_s
        self._setup: say.Setup | None = None
        self._listener: Listener | None = None
        self._hello: dict[int, asyncio.Future[say.Hello]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._watch: asyncio.Task[None] | None = None
        self._spare: tuple[int, subprocess.Popen[bytes]] | None = None
        self._spares = 0  # so far
        self._place_of: dict[int, asyncio.Future[Place | None]] = {}  # a spare's, by its number
        self._memory_kills = memory_kills()
        # Which device a process sees is settled before it imports anything.
        self._has_spare = has_spare and not any(place.gpus for place in places)
        self._opening: Callable[[Place, say.Opening], None] = lambda _place, _frame: None
        self._admitting: tuple[Place, say.Item, asyncio.Future[str]] | None = None

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
        who, process = f"worker {place.device}", await self._begin(place)
        while not hello.done():
            if process.poll() is not None:
                raise DataError(who, "ended before it was ready", "Its last words are above.")
            if time.monotonic() - place.heard_s > self._start_s:
                raise DataError(who, f"said nothing for {self._start_s:.0f} s before it was ready")
            await asyncio.wait([hello], timeout=0.05)
        done(place, hello.result())

    async def admit(self, item: say.Item) -> str:
        """Have all workers ready a further model, one after another; return why one cannot, or "".

        A process that is lost meanwhile, or comes later, opens the model when it is first used.
        """
        assert self._setup is not None
        models = (*self._setup.models, item)
        self._setup = msgspec.structs.replace(self._setup, models=models)
        for place in self._places:
            generation = place.generation
            answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self._admitting = place, item, answer
            if place.link is not None:
                place.heard_s = time.monotonic()
                place.link.send(say.Admit(item=item))
            while not answer.done() and place.link is not None and place.generation == generation:
                await asyncio.wait([answer], timeout=0.1)
            self._admitting = None
            if answer.done() and (failed := answer.result()):
                return failed
        return ""

    def dismiss(self, model: str) -> None:
        """Tell processes that come no more of a model."""
        assert self._setup is not None
        models = tuple(item for item in self._setup.models if item.name != model)
        self._setup = msgspec.structs.replace(self._setup, models=models)

    def watch(self, listener: Listener) -> None:
        """Report all events to a listener from now on, and restart lost processes."""
        self._listener = listener
        self._watch = asyncio.create_task(self._kill_hanging())
        if self._has_spare:
            self._later(self._stand_by(0.0))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _process(
        self, place: int, generation: int, gpus: Sequence[Device] = ()
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 (this Python, our module)
            [sys.executable, "-m", self._worker, str(self._socket), str(place), str(generation)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **binding(gpus, self._devices)},
        )  # fmt: skip

    async def _begin(self, place: Place) -> subprocess.Popen[bytes]:
        async def start() -> subprocess.Popen[bytes]:
            return self._spawn(place)

        return await started(f"worker {place.device}", start)

    def _spawn(self, place: Place) -> subprocess.Popen[bytes]:
        """Give a place a process: the one that stands by, else a new one."""
        place.generation += 1
        place.has_worked, place.is_hung, place.is_over = False, False, False
        for number, given in tuple(self._place_of.items()):  # what it had before is gone
            if given.done() and given.result() in (None, place):
                del self._place_of[number]
        spare, self._spare = self._spare, None
        is_there = spare is not None and spare[1].poll() is None
        if spare is not None:
            self._place_of[spare[0]].set_result(place if is_there else None)
        if spare is not None and is_there:
            place.process = spare[1]
        else:
            place.process = self._process(place.device, place.generation, place.gpus)
        place.heard_s = time.monotonic()
        if self._has_spare and self._listener is not None:
            self._later(self._stand_by(_SPARE_S))
        return place.process

    async def _stand_by(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)

        async def start() -> None:
            if self._spare is None:
                process = self._process(say.SPARE, self._spares + 1)
                self._spares += 1
                self._place_of[self._spares] = asyncio.get_running_loop().create_future()
                self._spare = self._spares, process

        await started("a worker that stands by", start)

    async def serve(self, hello: say.WorkerHello, link: Connection) -> None:
        """Take a worker's connection until it ends."""
        if hello.place == say.SPARE:
            given = self._place_of.get(hello.generation)
            assigned = None if given is None else await given
            if assigned is None:
                return
            place, generation = assigned, assigned.generation
        else:
            place, generation = self._places[hello.place], hello.generation
        if generation != place.generation or place.is_over or self._setup is None:
            return  # a process that was given up
        # A process that comes back serves at once what its place was doing.
        first = "all" if place.device == 0 else "kept"
        opens = "none" if self._listener is not None else first
        setup = msgspec.structs.replace(self._setup, opens=opens)
        setup = msgspec.structs.replace(setup, bound=bound_to(place.gpus))

        def heard(frame: say.AnyFrame) -> None:
            if generation != place.generation or place.is_over:
                link.close()  # what it said before it was lost comes after that
            elif isinstance(frame, say.Opening):
                place.heard_s = time.monotonic()
                self._opening(place, frame)
            elif isinstance(frame, say.Admitted):
                self._admitted(place, frame)
            elif isinstance(frame, say.Hello):
                assert self._setup is not None
                late = [item for item in self._setup.models if item not in setup.models]
                link.send(*(say.Admit(item=item) for item in late))
                self._ready(place, frame, link)
            elif self._listener is not None:
                self._listener.heard(place, frame)

        link.send(setup)
        await link.each(heard)
        if generation == place.generation and place.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # how it ended is soon known
                await asyncio.to_thread(place.process.wait, _END_S)
        if generation == place.generation and not self._is_closing:
            self._lost(place)

    def _admitted(self, place: Place, frame: say.Admitted) -> None:
        """Take that a process has a model ready; one that began meanwhile is not asked."""
        if self._admitting is None:
            return
        asked, item, answer = self._admitting
        if place is asked and frame.model == item.name and not answer.done():
            answer.set_result(frame.failed)

    def _ready(self, place: Place, frame: say.Hello, link: Connection) -> None:
        place.link, place.heard_s = link, time.monotonic()
        place.compiled += frame.compiled if self._listener is not None else 0
        waiting = self._hello.pop(place.device, None)
        if waiting is not None:
            waiting.set_result(frame)
        elif self._listener is not None:
            _log.warning("worker %d is back after %.1f s", place.device, frame.ready_s)
            self._listener.started(place)

    def _lost(self, place: Place) -> None:
        """Take note, once, that a process is gone; start another, unless too many were in vain."""
        if place.is_over:
            return
        place.is_over = True
        was_killed, for_memory = self._was_killed(place), self._may_be_for_memory()
        is_in_vain = place.link is None or (place.doing is not None and not place.has_worked)
        place.in_vain = 0 if not is_in_vain else place.in_vain + (not was_killed)
        place.ended = 0 if not is_in_vain else place.ended + was_killed
        self._reap(place)
        if self._listener is None:
            return
        place.is_quarantined = place.in_vain >= self._patience
        _log.error(
            "worker %d is gone%s", place.device,
            f" ({place.in_vain} in a row did nothing): given up" if place.is_quarantined else "",
        )  # fmt: skip
        # Not only the kernel ends what takes too much memory: it cannot always be others' doing.
        by_others = was_killed and not for_memory and place.ended <= self._patience
        self._listener.lost(place, for_good=place.is_quarantined, by_others=by_others)
        if not place.is_quarantined:
            place.restarts += 1
            self._later(self._again(place, _BACKOFF_S * (2**place.in_vain - 1)))

    async def _again(self, place: Place, delay_s: float) -> None:
        """Start a process in the place of a lost one, and see that it comes up."""
        await asyncio.sleep(min(delay_s, _MOST_BACKOFF_S))
        await self._begin(place)
        generation = place.generation
        while place.link is None and place.generation == generation:
            if place.is_over:
                return  # its connection has told
            if place.process is None or place.process.poll() is not None:
                self._lost(place)
                return
            await asyncio.sleep(0.1)

    async def _kill_hanging(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._hang_s / 4))
            for place in self._places:
                is_idle = place.doing is None or place.is_waiting
                is_admitting = self._admitting is not None and self._admitting[0] is place
                if place.process is None or (
                    place.link is not None and is_idle and not is_admitting
                ):
                    continue
                limit_s = self._start_s if place.link is None or is_idle else self._hang_s
                if time.monotonic() - place.heard_s > limit_s:
                    _log.error("worker %d said nothing for %.0f s", place.device, limit_s)
                    place.is_hung = True
                    place.process.kill()

    @staticmethod
    def _was_killed(place: Place) -> bool:
        """Return whether somebody else ended a process, not its work and not its silence."""
        status = None if place.process is None else place.process.poll()
        return status in (-signal.SIGKILL, -signal.SIGTERM) and not place.is_hung

    def _may_be_for_memory(self) -> bool:
        """Return whether the kernel has killed for memory since the last loss, or does not say."""
        before, self._memory_kills = self._memory_kills, memory_kills()
        return before is None or self._memory_kills != before

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
        for task in self._tasks:
            task.cancel()
        if self._spare is not None:
            self._spare[1].kill()
            self._spare[1].wait()
            self._place_of[self._spare[0]].set_result(None)
        for place in self._places:
            if place.link is not None:
                place.link.send(say.Stop())
        for place in self._places:
            process = place.process
            if process is None:
                continue
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, 2.0)
            self._reap(place)
