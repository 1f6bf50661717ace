"""Child processes of a command."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from typing import Any, Final, Self

from c2c.errors import DataError, SettingError

__all__ = [
    "BEGUN",
    "PATIENCE_S",
    "ROOT",
    "Ended",
    "Lines",
    "answer_of",
    "cpu_seconds",
    "end",
    "end_with_parent",
    "environment",
    "gather",
    "gpu_environment",
    "pss_mb",
    "run",
    "tree",
    "usable_cores",
    "worker_pool",
    "workers_of",
]

# `make gpu` runs without other packages: import the standard library and `c2c.errors` alone.
# Every wait can have a time limit, as a GPU's driver may block a process.
ROOT: Final = Path(__file__).parents[1]
PATIENCE_S: Final = 5.0
"""Seconds to wait for a killed process before it is abandoned."""
POLL_S: Final = 0.5
_MOMENT_S: Final = 0.2
_GPU: Final = {
    # Several processes share the GPU, and none may reserve the memory of the others.
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # A limit, not a reservation: two models in pinned memory are more than XLA's 64 GB allow for.
    "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB": "96",
}


# Cores and environments


def usable_cores(most: int = 0) -> set[int]:
    """Return the first `most` usable cores; all for 0."""
    present = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    present = present or list(range(os.cpu_count() or 1))
    return set(present[: most or None])


def workers_of(count: object, field: str) -> int:
    """Return `count`, or the number of cores for None."""
    if count is None:
        return len(usable_cores())
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise SettingError(field, count, "a whole number above 0, or null for all cores")
    return count


def environment(*folders: Path) -> dict[str, str]:
    """Return this environment with project and existing `folders` in Python's path."""
    paths = (str(ROOT), *(str(f) for f in folders if f.is_dir()), os.environ.get("PYTHONPATH", ""))
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def gpu_environment() -> dict[str, str]:
    """Return the environment of processes that use the GPU."""
    return environment() | _GPU


# A process that runs once


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Output of an ended process; `code`: None after the limit."""

    code: int | None
    out: str
    errors: str

    @property
    def why(self) -> str:
        """Last line of its errors, without "error: "."""
        last = (self.errors.strip() or "no message").splitlines()[-1]
        return last.removeprefix("error: ")


def run(
    command: Sequence[str],
    *,
    limit_s: float | None = None,
    env: Mapping[str, str] | None = None,
    apart: bool = True,
) -> Ended:
    """Run a command without input, output to files, for about `limit_s`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(  # noqa: S603 - our own modules
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            env=environment() if env is None else dict(env),
            start_new_session=apart,
        )
        code: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(None if limit_s is None else max(0.0, limit_s))
        finally:
            end(process, apart=apart)
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Ended(code=code, out=texts[0], errors=texts[1])


def answer_of(
    command: Sequence[str],
    failed: Callable[[str], Exception],
    *,
    limit_s: float | None = None,
    env: Mapping[str, str] | None = None,
    apart: bool = True,
) -> Any:
    """Run a command; return its last line, parsed as JSON."""
    done = run(command, limit_s=limit_s, env=env, apart=apart)
    if done.code is None:
        raise failed(f"not finished within {limit_s:.0f} s")
    if done.code:
        raise failed(done.why)
    return json.loads(done.out.splitlines()[-1])


def end(
    process: subprocess.Popen[Any], patience_s: float = PATIENCE_S, *, apart: bool = True
) -> bool:
    """Kill a process, with its group if `apart`; return whether ended."""
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        if apart:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
        return True
    return False


def end_with_parent() -> None:
    """Let the kernel kill this process at its parent's end."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


# A process that is asked line by line


class Lines:
    """Process that answers lines with lines; other output is kept."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cores: set[int] | None = None,
        apart: bool = True,
        channel: bool = False,
    ) -> None:
        self._apart = apart
        self._buffer = b""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        reader, writer = os.pipe()
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own modules
                [*command, str(writer)] if channel else command,
                stdin=subprocess.PIPE,
                stdout=self._log if channel else writer,
                stderr=self._log,
                pass_fds=(writer,) if channel else (),
                text=True,
                env=None if env is None else dict(env),
                start_new_session=apart,
            )
        finally:
            os.close(writer)
            self._answers = os.fdopen(reader, "rb", buffering=0)
        if cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self.process.pid, cores)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tell(self, line: str = "") -> bool:
        """Send a line; return False if its input is closed."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def line(
        self, until: float | None = None, waiting: Callable[[], object] = lambda: None
    ) -> bytes | None:
        """Return the next line, b"" at the end, None when late."""
        with selectors.DefaultSelector() as channel:
            channel.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not channel.select(_MOMENT_S):
                    waiting()
                timeout_s = None if until is None else max(0.0, until - time.monotonic())
                if not channel.select(timeout_s):
                    return None
                piece = self._answers.read(1 << 16)
                if not piece:
                    return b""
                self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def said(self, begin: int = 0, stop: int | None = None) -> str:
        """Return other output, from byte `begin` to `stop`."""
        stop = self.said_bytes if stop is None else stop
        self._log.seek(begin)
        return self._log.read(stop - begin).decode("utf-8", "replace")

    @property
    def said_bytes(self) -> int:
        """Bytes of output beside the answers so far."""
        return self._log.seek(0, os.SEEK_END)

    @property
    def why(self) -> str:
        """Last line of its output, see `Ended.why`."""
        return Ended(code=None, out="", errors=self.said()).why

    def close(self) -> None:
        """Kill the process, with its group if `apart`."""
        end(self.process, apart=self._apart)
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # unread input is dropped
                self.process.stdin.close()
        self._answers.close()
        self._log.close()


# Processes of a pool, which end with this one


@contextlib.contextmanager
def worker_pool(
    workers: int,
    begin: Callable[..., None] | None = None,
    arguments: tuple[Any, ...] = (),
    *,
    lost: str = "that worked for this command was killed (out of memory?)",
) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of spawned processes; Ctrl-C is this process's."""
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(begin, arguments),
    )
    try:
        yield pool
    except BrokenProcessPool as error:
        raise DataError("process", f"one {lost}") from error
    except BaseException:
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(begin: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait_for_any([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if begin is not None:
        begin(*arguments)


def gather[T](
    work: Callable[..., T],
    calls: Sequence[tuple[Any, ...]],
    *,
    workers: int,
    tell: Callable[[Sequence[float]], object],
    done: Callable[[T], object] = lambda _: None,
    begin: Callable[[], None] | None = None,
    lost: str,
) -> list[T]:
    """Return `work`'s results for `calls`, in order; an error ends all."""
    shares = multiprocessing.get_context("spawn").Array("d", len(calls))
    with worker_pool(workers, _inherit, (shares, begin), lost=lost) as pool:
        tasks = [pool.submit(_one, work, k, arguments) for k, arguments in enumerate(calls)]
        waiting = set(tasks)
        while waiting:
            over, waiting = wait(waiting, timeout=POLL_S, return_when=FIRST_COMPLETED)
            for task in over:
                done(task.result())
            tell(shares[:])
        return [task.result() for task in tasks]


BEGUN: Final = 1e-9  # share of a work that has only begun
# State that a process inherits from its parent.
_INHERITED: dict[str, Any] = {}


def _inherit(shares: Any, begin: Callable[[], None] | None) -> None:
    _INHERITED["shares"] = shares
    if begin is not None:
        begin()


def _one[T](work: Callable[..., T], k: int, arguments: tuple[Any, ...]) -> T:
    shares = _INHERITED["shares"]

    def within(share: float) -> None:
        shares[k] = max(share, BEGUN)

    shares[k] = BEGUN
    result = work(*arguments, within)
    shares[k] = 1.0
    return result


# What processes use


def tree(pids: Sequence[int]) -> list[int]:
    """Return the ids of processes and of their descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _fields(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    result = list(pids)
    for pid in result:
        result += children.get(pid, [])
    return result


def _fields(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return CPU seconds of processes, descendants, and ended children."""
    ticks = sum(sum(map(int, _fields(pid)[11:15])) for pid in tree(pids))
    return ticks / os.sysconf("SC_CLK_TCK")


def pss_mb(pids: Sequence[int]) -> float:
    """Return the MB of processes and descendants, shared pages once."""
    total_kb = 0
    for pid in tree(pids):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        line = next((line for line in text.splitlines() if line.startswith("Pss:")), "Pss: 0 kB")
        total_kb += int(line.split()[1])
    return total_kb / 1e3
