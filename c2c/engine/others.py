"""Other processes' load: CPU time and out-of-memory kills."""

from __future__ import annotations

import asyncio
import os
import resource
from collections import deque
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CpuSeconds", "cpu_seconds", "memory_kills", "note_others", "share_of_others"]

_LOOK_S = 10.0  # between readings of CPU time
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)  # fields of a /proc/stat line: idle, iowait


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSeconds:
    """CPU seconds since boot of all cores, and the engine's."""

    total_s: float
    busy_s: float
    ours_s: float


def cpu_seconds(proc: Path = Path("/proc")) -> CpuSeconds | None:
    """Return CPU seconds, the engine's with descendants; None if unknown."""
    try:
        first = (proc / "stat").read_text().splitlines()[0].split()
        ticks = [int(text) for text in first[1:9]]  # later fields are included in these
        ours = sum(_seconds_of(proc, pid) for pid in _tree(proc, os.getpid()))
    except (OSError, IndexError, ValueError):
        return None
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return CpuSeconds(
        total_s=sum(ticks) * _TICK_S,
        busy_s=sum(t for k, t in enumerate(ticks) if k not in _IDLE) * _TICK_S,
        ours_s=ours + ended.ru_utime + ended.ru_stime,
    )


def share_of_others(before: CpuSeconds, now: CpuSeconds) -> float:
    """Return others' share of the cores between two readings."""
    theirs = (now.busy_s - before.busy_s) - (now.ours_s - before.ours_s)
    return min(1.0, max(0.0, theirs / max(_TICK_S, now.total_s - before.total_s)))


def memory_kills(proc: Path = Path("/proc")) -> int | None:
    """Return the kernel's out-of-memory kills; None if unknown."""
    try:
        lines = (proc / "vmstat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    except (OSError, IndexError, ValueError, StopIteration):
        return None


def _tree(proc: Path, pid: int) -> list[int]:
    result = [pid]
    for task in (proc / str(pid) / "task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except FileNotFoundError:  # the thread has ended, or the kernel lacks this file
            continue
        for child in map(int, children):
            result += _tree(proc, child) if (proc / str(child)).is_dir() else []
    return result


def _seconds_of(proc: Path, pid: int) -> float:
    try:
        text = (proc / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it has just ended
    after_name = text.rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) * _TICK_S


async def note_others(shares: deque[float]) -> None:
    """Record other processes' share of the CPU regularly."""
    before = cpu_seconds()
    while before is not None:
        await asyncio.sleep(_LOOK_S)
        now = cpu_seconds()
        if now is None:
            return
        shares.append(share_of_others(before, now))
        before = now
