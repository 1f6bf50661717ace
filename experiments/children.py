"""Processes that are waited for only so long: one that a GPU's driver holds cannot be ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PATIENCE_S = 5.0
"""How long a killed process may take to be gone, before it is left behind."""

ENVIRONMENT = {
    # Several processes share the GPU, and one must not take what another measures with.
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # A limit, not a reservation: two models in pinned memory are more than XLA's 64 GB allow for.
    "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB": "96",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a process left; `code` is None if it did not end in its time."""

    code: int | None
    out: str
    errors: str


def environment() -> dict[str, str]:
    """Return the environment of processes that use the GPU."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return os.environ | {"PYTHONPATH": path} | ENVIRONMENT


def run_bounded(
    command: Sequence[str], *, limit_s: float, env: Mapping[str, str] | None = None
) -> Ended:
    """Run a command in a session of its own; return after `limit_s` and a little at the latest.

    Its output goes to files: a pipe stays open as long as any process that inherited it.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(  # noqa: S603 - our own modules
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            cwd=ROOT,
            env=environment() if env is None else dict(env),
            start_new_session=True,
        )
        code: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(max(0.0, limit_s))
        finally:
            end(process)
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Ended(code=code, out=texts[0], errors=texts[1])


def end(process: subprocess.Popen[Any], patience_s: float = PATIENCE_S) -> bool:
    """Kill a process that leads a group, and its group; return whether it was seen to be gone."""
    with contextlib.suppress(ProcessLookupError):  # all of it has ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
        return True
    return False


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent is gone, however that ended.

    Only Linux can; elsewhere a worker ends when its standard input does.
    """
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
