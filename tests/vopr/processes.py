"""Processes inside the event loop: `c2c.engine.worker.main` in a fibre that may die anytime."""

from __future__ import annotations

import _thread
import asyncio
import json
import signal
import socket
import subprocess
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol

from c2c.engine import worker
from tests.vopr.loop import Loop, Pipe

__all__ = ["Died", "Fibre", "Process", "Reader", "Socket", "Surroundings"]


class Died(BaseException):
    """Raised to crash a process."""


class _Cut(BaseException):
    """Raised to end a fibre at its next wait."""


class Surroundings(Protocol):
    """Calls of processes to the world.

    Attributes:
      loop: event loop of the world.
      processes: workers so far, ended ones included.
      readers: readers of weights so far, ended ones included.
      current: process that runs now; None: the scheduler.
      files: names of existing files.
    """

    loop: Loop
    processes: list[Process]
    readers: list[Reader]
    current: Process | None
    files: set[str]

    def next_pid(self) -> int:
        """Return a number that no other process has."""

    def boot_s(self, name: str) -> float | None:
        """Return the seconds that a process takes to start; None: for ever."""

    def residents_of(self, setup: Any, told: Callable[[Any], None]) -> Any:
        """Return the residents of a worker."""

    def read(self, reader: Reader, item: dict[str, Any]) -> tuple[float, str]:
        """Return the seconds that a read takes, and its error or ""."""

    def broken(self, what: str) -> None:
        """Record a broken law."""


class Fibre:
    """Thread that runs only while the loop waits for it, so that the order is deterministic."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._turn, self._back = _thread.allocate_lock(), _thread.allocate_lock()
        self._turn.acquire()
        self._back.acquire()
        self._has_begun = self._is_cut = self.is_over = False

    def go_on(self) -> None:
        """Run the fibre until it waits or ends."""
        if self._has_begun:
            self._turn.release()
        else:
            self._has_begun = True
            _thread.start_new_thread(self._run, ())
        self._back.acquire()

    def wait(self) -> None:
        """Wait for the next turn; called inside the fibre."""
        if not self._is_cut:
            self._back.release()
            self._turn.acquire()
        if self._is_cut:
            raise _Cut

    def cut(self) -> None:
        """End the fibre where it waits."""
        if self._has_begun and not self.is_over:
            self._is_cut = True
            self.go_on()

    def _run(self) -> None:
        try:
            self._work()
        except _Cut:
            pass
        finally:
            self.is_over = True
            self._back.release()


class Process:
    """Worker process with the interface of `subprocess.Popen`."""

    def __init__(self, world: Surroundings, args: list[str]) -> None:
        """Start the process.

        Args:
          world: world of the process.
          args: command line: Python, -m, the module and its arguments.
        """
        self._world, self.loop = world, world.loop
        self.pid = world.next_pid()
        self._args = args[3:]
        self.name = f"w{self._args[1]}.{self._args[2]}"
        self.status: int | None = None
        self.sockets: list[Socket] = []
        self.residents: Any = None
        self.steps = 0
        self._ends: list[Callable[[], None]] = []
        self.fibre = Fibre(self._main)
        self._timer: asyncio.Handle | None = None
        self.is_frozen = self._was_due = False
        boot_s = world.boot_s(self.name)
        self.loop.note(f"{self.name} begins")
        if boot_s is not None:
            self._timer = self.loop.call_later(boot_s, self._go_on)
        world.processes.append(self)

    def poll(self) -> int | None:
        """Return the exit status; None while the process runs."""
        return self.status

    def kill(self) -> None:
        """Kill the process."""
        self.end(-signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status of an ended process.

        Raises:
          TimeoutExpired: the process still runs.
        """
        if self.status is None:
            raise subprocess.TimeoutExpired(self.name, timeout or 0.0)
        return self.status

    def ended_by(self, timeout: float | None = None) -> asyncio.Future[int]:
        """Return an awaitable of the exit status, or of `TimeoutExpired`."""
        result: asyncio.Future[int] = self.loop.create_future()

        def over() -> None:
            if not result.done():
                if self.status is None:
                    result.set_exception(subprocess.TimeoutExpired(self.name, timeout or 0.0))
                else:
                    result.set_result(self.status)

        if self.status is not None:
            over()
            return result
        self._ends.append(over)
        if timeout is not None:
            self.loop.call_later(timeout, over)
        return result

    def _main(self) -> None:
        try:
            status = worker.main(list(self._args), self._residents_of)
        except Died:
            status = 1
        except SystemExit as error:
            status = int(error.code or 0)
        except Exception:  # noqa: BLE001 (the law is that there is none)
            self._world.broken(f"{self.name} crashed:\n{traceback.format_exc()}")
            status = 1
        self.end(status)

    def _residents_of(self, setup: Any, told: Callable[[Any], None]) -> Any:
        self.residents = self._world.residents_of(setup, told)
        return self.residents

    def _go_on(self) -> None:
        self._timer = None
        if self.is_frozen:
            self._was_due = True
        elif self.status is None:
            self._as_current(self.fibre.go_on)

    def _as_current(self, work: Callable[[], None]) -> None:
        before, self._world.current = self._world.current, self
        work()
        self._world.current = before

    def sleep_until(self, at_s: float) -> None:
        """Wait until a time; called inside the fibre."""
        if at_s > self.loop.now_s:
            self._timer = self.loop.call_at(at_s, self._go_on)
            self.fibre.wait()

    def wake(self) -> None:
        """Let the process run again, since its wait is over."""
        if self._timer is None and self.status is None:
            self._timer = self.loop.call_soon(self._go_on)

    def aside(self, work: Callable[[], None], in_s: float) -> None:
        """Run another thread's work in one piece, `in_s` seconds from now."""

        def do() -> None:
            if self.is_frozen:
                self.loop.call_later(0.1, do)
            elif self.status is None:
                self._as_current(work)

        self.loop.call_later(in_s, do)

    def freeze(self) -> None:
        """Stop giving turns to the process."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Give turns to the process again."""
        self.is_frozen = False
        if self._was_due and self.status is None:
            self._was_due = False
            self._timer = self.loop.call_soon(self._go_on)

    def end(self, status: int) -> None:
        """End the process; the end of its last writes may be lost."""
        if self.status is not None:
            return
        self.status = status
        self.loop.note(f"{self.name} ends {status}")
        if self._timer is not None:
            self._timer.cancel()
        rng = self.loop.draw("end/" + self.name)
        for each in self.sockets:
            if status != 0 and each.out is not None:
                each.out.cut(rng)
            each.close()
        for over in self._ends:
            self.loop.call_soon(over)


class Socket:
    """Blocking Unix socket of a process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._data = bytearray()
        self._is_over = self._is_waiting = False
        self.out: Pipe | None = None
        process.sockets.append(self)

    def connect(self, path: str) -> None:
        """Connect to a server of the loop."""
        process, loop = self._process, self._process.loop

        def accept() -> None:
            if process.status is None and path in loop.servers:
                theirs = loop.open(path)
                self.out = Pipe(loop, process.name + ">", theirs.give, theirs.close)
                theirs.out = Pipe(loop, ">" + process.name, self._give, self._end)
            process.wake()

        loop.call_soon(accept)
        process.fibre.wait()
        if self.out is None:
            raise ConnectionRefusedError(path)

    def _give(self, data: bytes) -> None:
        self._data += data
        if self._is_waiting:
            self._process.wake()

    def _end(self) -> None:
        self._is_over = True
        if self._is_waiting:
            self._process.wake()

    def recv(self, most: int, flags: int = 0) -> bytes:
        """Return up to `most` received bytes; b"" at the end."""
        while not self._data and not self._is_over:
            if flags & socket.MSG_DONTWAIT:
                raise BlockingIOError
            self._is_waiting = True
            self._process.fibre.wait()
            self._is_waiting = False
        result = bytes(self._data[:most])
        del self._data[:most]
        return result

    def sendall(self, data: bytes) -> None:
        """Send bytes."""
        if self._is_over:
            raise BrokenPipeError
        assert self.out is not None
        self.out.write(data)

    def close(self) -> None:
        """End the connection."""
        if self.out is not None:
            self.out.close()


class Reader:
    """Process that reads weights, with the interface of `asyncio.subprocess.Process`."""

    def __init__(self, world: Surroundings) -> None:
        self._world, self._loop = world, world.loop
        self.pid = world.next_pid()
        self.name = f"reader.{self.pid}"
        self.returncode: int | None = None
        self.stdin = SimpleNamespace(write=self._write, drain=self._drain)
        self.stdout = SimpleNamespace(readline=self._readline)
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        world.readers.append(self)

    def _write(self, line: bytes) -> None:
        if self.returncode is not None:
            raise BrokenPipeError
        item = json.loads(line)["item"]
        self._world.files.add(item["pool"] + ".partial")  # its pages are taken at the start
        seconds, failed = self._world.read(self, item)
        self._loop.call_later(seconds, self._done, item["pool"], failed)

    async def _drain(self) -> None: ...

    async def _readline(self) -> bytes:
        return await self._answers.get()

    def _done(self, pool: str, failed: str) -> None:
        if self.returncode is not None:
            return
        self._world.files.discard(pool + ".partial")
        if not failed:
            self._world.files.add(pool)
        self._answers.put_nowait(json.dumps({"failed": failed}).encode() + b"\n")

    def kill(self) -> None:
        """Kill the process."""
        self.end(-signal.SIGKILL)

    def end(self, status: int) -> None:
        """End the process; a partly written file stays."""
        if self.returncode is None:
            self._loop.note(f"{self.name} ends {status}")
            self.returncode = status
            self._answers.put_nowait(b"")
            self._ended.set_result(None)

    async def wait(self) -> int:
        """Return the exit status after the end."""
        await asyncio.shield(self._ended)
        assert self.returncode is not None
        return self.returncode
