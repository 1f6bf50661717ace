"""Supervision of worker processes: losses, hangs, restarts."""

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
_BACKOFF_S = 0.1  # doubled for each consecutive process without completed work
_MOST_BACKOFF_S = 5.0
_START = 10  # default of `start_s`, in multiples of `hang_s`
_END_S = 0.5  # wait for a process's exit after its connection closes
_SPARE_S = 0.5  # delay of a new standby after a loss, so that its replacement starts first


class Listener(Protocol):
    """Receiver of worker events."""

    def started(self, place: Place) -> None:
        """Handle a restarted process's readiness."""

    def heard(self, place: Place, frame: object) -> None:
        """Handle a message from a process."""

    def lost(self, place: Place, *, for_good: bool, by_others: bool) -> None:
        """Handle a process's loss."""


class Supervisor:
    """Processes of all slots, and a standby."""

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
        """Create a supervisor; no process is started."""
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
        self._is_spare_ready = False
        self._place_of: dict[int, asyncio.Future[Place | None]] = {}  # slot by standby number
        self._memory_kills = memory_kills()
        # A process is bound to its device before its imports, so no standby with GPUs.
        self._has_spare = has_spare and not any(place.gpus for place in places)
        self._opening: Callable[[Place, say.Opening], None] = lambda _place, _frame: None
        self._admitting: tuple[Place, say.Item, asyncio.Future[str]] | None = None

    async def start(
        self,
        setup: say.Setup,
        done: Callable[[Place, say.Hello], None],
        opening: Callable[[Place, say.Opening], None],
    ) -> None:
        """Start all processes, the first alone: it writes shared files."""
        self._setup, self._opening = setup, opening
        await self._first(self._places[0], done)
        await asyncio.gather(*(self._first(place, done) for place in self._places[1:]))

    async def _first(self, place: Place, done: Callable[[Place, say.Hello], None]) -> None:
        hello = self._hello[place.device] = asyncio.get_running_loop().create_future()
        who, process = f"worker {place.device}", await self._begin(place)
        while not hello.done():
            if process.poll() is not None:
                raise DataError(who, "ended before it was ready", "Its error is above.")
            if time.monotonic() - place.heard_s > self._start_s:
                raise DataError(who, f"sent nothing for {self._start_s:.0f} s before it was ready")
            await asyncio.wait([hello], timeout=0.05)
        done(place, hello.result())

    async def admit(self, item: say.Item) -> str:
        """Prepare a further model on all workers in turn; return a failure's reason, or ""."""
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
        """Remove a model from later processes."""
        assert self._setup is not None
        models = tuple(item for item in self._setup.models if item.name != model)
        self._setup = msgspec.structs.replace(self._setup, models=models)

    def watch(self, listener: Listener) -> None:
        """Report events to a listener, and restart lost processes."""
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
        place.generation += 1
        place.has_worked, place.is_hung, place.is_over = False, False, False
        for number, future in tuple(self._place_of.items()):  # forget its earlier standbys
            if future.done() and future.result() in (None, place):
                del self._place_of[number]
        spare, self._spare = self._spare, None
        is_there = spare is not None and spare[1].poll() is None
        if spare is not None:
            self._place_of[spare[0]].set_result(place if is_there else None)
        place.was_ready = is_there and self._is_spare_ready
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
                self._spare, self._is_spare_ready = (self._spares, process), False

        await started("a standby worker", start)

    async def serve(self, hello: say.WorkerHello, link: Connection) -> None:
        """Serve a worker's connection until it ends."""
        if hello.place == say.SPARE:
            self._is_spare_ready |= hello.generation == self._spares
            future = self._place_of.get(hello.generation)
            assigned = None if future is None else await future
            if assigned is None:
                return
            place, generation = assigned, assigned.generation
        else:
            place, generation = self._places[hello.place], hello.generation
        if generation != place.generation or place.is_over or self._setup is None:
            return  # a process that was given up
            # A restarted process resumes its slot's work at once, so it opens models later.
        first = "all" if place.device == 0 else "kept"
        opens = "none" if self._listener is not None else first
        setup = msgspec.structs.replace(self._setup, opens=opens)
        setup = msgspec.structs.replace(setup, bound=bound_to(place.gpus))

        def heard(frame: say.AnyFrame) -> None:
            if generation != place.generation or place.is_over:
                link.close()  # late frames of a lost process
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
            with contextlib.suppress(subprocess.TimeoutExpired):  # its exit status is known soon
                await asyncio.to_thread(place.process.wait, _END_S)
        if generation == place.generation and not self._is_closing:
            self._lost(place)

    def _admitted(self, place: Place, frame: say.Admitted) -> None:
        if self._admitting is None:
            return
        target, item, answer = self._admitting
        if place is target and frame.model == item.name and not answer.done():
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
            f" ({place.in_vain} in a row did no work): given up" if place.is_quarantined else "",
        )  # fmt: skip
        # Others than the kernel also kill for memory, so repeated kills count as the worker's own.
        by_others = was_killed and not for_memory and place.ended <= self._patience
        self._listener.lost(place, for_good=place.is_quarantined, by_others=by_others)
        if not place.is_quarantined:
            place.restarts += 1
            self._later(self._again(place, _BACKOFF_S * (2**place.in_vain - 1)))

    async def _again(self, place: Place, delay_s: float) -> None:
        await asyncio.sleep(min(delay_s, _MOST_BACKOFF_S))
        await self._begin(place)
        generation = place.generation
        while place.link is None and place.generation == generation:
            if place.is_over:
                return  # handled at the end of its connection
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
                starts = is_idle if place.link is not None else not place.was_ready
                limit_s = self._start_s if starts else self._hang_s
                if time.monotonic() - place.heard_s > limit_s:
                    _log.error("worker %d sent nothing for %.0f s: killed", place.device, limit_s)
                    place.is_hung = True
                    place.process.kill()

    @staticmethod
    def _was_killed(place: Place) -> bool:
        status = None if place.process is None else place.process.poll()
        return status in (-signal.SIGKILL, -signal.SIGTERM) and not place.is_hung

    def _may_be_for_memory(self) -> bool:
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
