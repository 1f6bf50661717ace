"""Simulated surroundings of an engine: operating system, device and checkpoints."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from contextlib import ExitStack
from itertools import count
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any, Protocol
from unittest import mock

from c2c.engine import (
    between,
    frames,
    models,
    others,
    residents,
    scheduler,
    store,
    supervisor,
    worker,
)
from c2c.engine.front import guard, link
from tests.vopr.processes import Process, Reader, Socket, Surroundings

__all__ = ["Outside", "behind"]


class Outside(Surroundings, Protocol):
    """Calls of the engine to the world."""

    wall_s: float  # offset of the wall clock
    folders: int
    memory_kills: int

    def can_fork(self) -> bool:
        """Return True if the machine can start a process now."""

    def give_way(self) -> None:
        """Yield the core to others."""

    def executables(self, where: str | None) -> Any:
        """Return the executables of the current process."""

    def load(self, path: Any, dtype: Any, *, pool: str | None, **more: Any) -> Any:
        """Load a checkpoint, or map its weights."""

    def found(self, path: Any) -> Any:
        """Return the checkpoints of a folder."""

    def fleet_of(self, *args: Any, **more: Any) -> Any:
        """Return a fleet."""


def behind(world: Any, *, most_waiting: int, spins: bool) -> ExitStack:
    """Put a world behind the engine until the returned stack is closed.

    Args:
      world: an `Outside`.
      most_waiting: number of waiting answers that makes a client slow.
      spins: True if workers poll for frames for a while before they wait.
    """
    outside: Outside = world
    stack = ExitStack()

    def put(owner: Any, **names: Any) -> None:
        for name, value in names.items():
            stack.enter_context(mock.patch.object(owner, name, value))

    def now_s() -> float:
        return outside.loop.now_s

    def begin(args: list[str], **_: Any) -> Process:
        if not outside.can_fork():
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return Process(outside, args)

    async def read(*_: Any, **__: Any) -> Reader:
        await asyncio.sleep(0.001)
        if not outside.can_fork():
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return Reader(outside)

    def connected(*_: Any) -> Socket:
        assert outside.current is not None
        return Socket(outside.current)

    def thread(target: Any, **_: Any) -> Any:
        process = outside.current
        assert process is not None
        rng = outside.loop.draw("thread/" + process.name)
        return SimpleNamespace(start=lambda: process.aside(target, rng.choice((0.0, 0.01, 1.0))))

    class File(PurePosixPath):
        def unlink(self, *, missing_ok: bool) -> None:
            del missing_ok
            outside.files.discard(str(self))

    def folder() -> Any:
        outside.folders += 1

        def remove() -> None:
            outside.folders -= 1
            outside.files.clear()

        return SimpleNamespace(path=_Folder("/sim/engine"), remove=remove)

    put(time, monotonic=now_s, perf_counter=now_s, time=lambda: 1e9 + outside.wall_s + now_s())
    put(os, sched_yield=outside.give_way)
    put(asyncio, create_subprocess_exec=read)
    put(subprocess, Popen=begin)
    put(worker, socket=SimpleNamespace(socket=connected, AF_UNIX=None))
    put(worker, signal=SimpleNamespace(signal=lambda *_: None, SIGINT=None, SIG_IGN=None))
    put(residents, threading=SimpleNamespace(Lock=threading.Lock, Thread=thread))
    put(residents, gc=SimpleNamespace(collect=lambda: 0))
    clocks = {"clock": now_s, "give_way": outside.give_way}
    stack.enter_context(mock.patch.dict(between.Between.__init__.__kwdefaults__, clocks))
    put(frames, _SPIN_S=0.0005 if spins else 0.0)
    ids = (SimpleNamespace(hex=f"{k:032x}") for k in count())
    put(guard, uuid=SimpleNamespace(uuid4=lambda: next(ids)))
    put(link, MOST_WAITING=most_waiting)
    put(others, cpu_seconds=lambda: None)
    put(supervisor, memory_kills=lambda: outside.memory_kills)
    put(scheduler, OwnFolder=folder, fleet_of=outside.fleet_of)
    put(models, find_models=outside.found, fleet_of=outside.fleet_of)
    put(store, Path=File)
    put(residents, _executables=outside.executables)
    put(residents, load=outside.load, ThreadPoolExecutor=_Inline, Path=File)
    return stack


class _Folder(PurePosixPath):
    def mkdir(self, **_: Any) -> None:
        """Do nothing: the folder exists."""


class _Inline:
    """Thread pool that runs work in the caller."""

    def __init__(self, *_: Any) -> None: ...

    def __enter__(self) -> _Inline:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, work: Any, *args: Any) -> Any:
        found = work(*args)
        return SimpleNamespace(result=lambda: found)
