"""Worker process: serves a device's models and executes the scheduler's plans.

python -m c2c.engine.worker <socket> <place> <generation>
"""

from __future__ import annotations

import importlib
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from c2c.engine.devices import check_seen
from c2c.engine.frames import SocketFrames
from c2c.engine.messages import (
    SPARE,
    Admit,
    Drop,
    ForgetBlocks,
    Free,
    Hello,
    Interrupt,
    Load,
    Loaded,
    Relayout,
    Run,
    Setup,
    Stop,
    Unload,
    WorkerHello,
)

__all__ = ["main"]

ResidentsOf = Callable[[Setup, Callable[[Any], None]], Any]  # (setup, progress callback)


class _Inbox:
    """Queue in which interrupts overtake; the computing thread reads it."""

    def __init__(self, frames: SocketFrames) -> None:
        self._frames = frames
        self._waiting: deque[Any] = deque()
        self._interrupted = -1  # last interrupted plan
        self._is_over = False

    def _take(self, *, waits: bool) -> None:
        frames = self._frames.receive(waits=waits)
        if frames is None:
            self._is_over = True
            self._waiting.append(Stop())
            return
        for frame in frames:
            if isinstance(frame, Interrupt):
                self._interrupted = max(self._interrupted, frame.plan)
            else:
                self._waiting.append(frame)

    def ends(self, plan: int) -> bool:
        if not self._is_over:
            self._take(waits=False)
        return self._is_over or self._interrupted >= plan

    def get(self, meanwhile: Callable[[], bool] = lambda: False) -> Any:
        has_more = True
        while not self._waiting:
            has_more = has_more and meanwhile()
            self._take(waits=not has_more)
        return self._waiting.popleft()


def serve(frames: SocketFrames, residents_of: ResidentsOf | None = None) -> None:
    """Handle frames until `Stop` or the connection's end; None: with `Residents`."""
    inbox = _Inbox(frames)
    setup = inbox.get()
    if not isinstance(setup, Setup):
        return
    if setup.bound:
        check_seen(setup.bound)
    begun_s = time.perf_counter()
    if residents_of is None:
        from c2c.engine.residents import Residents

        residents_of = Residents
    residents = residents_of(setup, frames.send)
    frames.send(
        Hello(
            failed=residents.failed,
            compiled=residents.compiled,
            loaded=residents.loaded,
            ready_s=time.perf_counter() - begun_s,
        )
    )

    def advance() -> bool:
        relaid = residents.advance()
        if relaid is not None:
            frames.send(relaid)
        return bool(residents.is_changing)

    while not isinstance(frame := inbox.get(advance), Stop):
        if isinstance(frame, Run):
            for stepped in residents.run(frame, partial(inbox.ends, frame.plan)):
                frames.send(stepped)
                advance()
        elif isinstance(frame, Load):
            at_s = time.perf_counter()
            residents.load(frame)
            frames.send(Loaded(plan=frame.plan, seconds=time.perf_counter() - at_s))
        elif isinstance(frame, Admit):
            residents.admit(frame.item, frames.send)
        else:
            _change(residents, frame)


def _change(residents: Any, frame: Any) -> None:
    if isinstance(frame, Relayout):
        residents.relayout(frame)
    elif isinstance(frame, Unload):
        residents.unload(frame.instance)
    elif isinstance(frame, Drop):
        residents.drop(frame.model)
    elif isinstance(frame, Free):
        residents.free(frame.requests)
    elif isinstance(frame, ForgetBlocks):
        residents.forget(frame.keys)


def main(arguments: list[str], residents_of: ResidentsOf | None = None) -> int:
    """Connect and `serve`; return the exit status."""
    path, place, generation = arguments
    if int(place) == SPARE and residents_of is None:  # slow imports, done in advance
        importlib.import_module("c2c.engine.residents")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the scheduler ends this process
    connection = socket.socket(socket.AF_UNIX)
    frames = SocketFrames(connection)
    try:
        connection.connect(path)
        frames.send(WorkerHello(place=int(place), generation=int(generation)))
    except (ConnectionError, FileNotFoundError):
        return 0  # the scheduler is gone
    with suppress(ConnectionError):
        serve(frames, residents_of)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
