"""Parent's side of a child process that runs cases. Every wait for the child has a limit."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from experiments.children import PATIENCE_S, Lines, gpu_environment
from experiments.gpu.cases import Case, Context, Row

_TAIL, _LOG_BYTES = 600, 1 << 15
_DUMP_S = 0.5  # for a hung process to dump its stack
_INNERMOST, _FRAMES = 2, 6
_HARNESS = ("suite.py", "worker.py")
# Errors that make a process's context of the device unusable.
_BROKEN = re.compile(
    r"CUDA_ERROR_(ILLEGAL|LAUNCH_FAILED|LAUNCH_TIMEOUT|MISALIGNED|HARDWARE|ECC|ASSERT|UNKNOWN|INVALID_PC)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a case.

    `lost` is "hung" or "crashed" if the case cost its process, else "".
    """

    status: str  # ok, failed, skipped
    reason: str = ""
    rows: list[Row] = field(default_factory=list)
    lost: str = ""


class Child:
    """Process that runs the cases of one module, restarted after a case that ended it."""

    def __init__(
        self, module: str, context: Context, waiting: Callable[[], object] = lambda: None
    ) -> None:
        self._module, self._context, self._waiting = module, context, waiting
        self._lines: Lines | None = None
        self._fresh = True

    def start(self, limit_s: float) -> Outcome | None:
        """Start the process if there is none; return the failure, None if it runs.

        No case is to blame for such a failure: none has begun.
        """
        if self._lines is not None:
            return None
        worker = [sys.executable, "-m", "experiments.gpu.worker", self._module]
        self._lines = Lines(
            [*worker, json.dumps(asdict(self._context))], env=gpu_environment(), channel=True
        )
        self._fresh = True
        answer = self._answer(limit_s, limit_s, "did not start")
        return answer if isinstance(answer, Outcome) else None

    def run(self, case: Case, at_most_s: float) -> Outcome:
        """Run a case in the process that `start` began; end it if it does not answer in time.

        Args:
          case: case to run; its `limit_s` excludes compilation, and a process's first case is
            limited by `most_s` alone.
          at_most_s: seconds left of the run.
        """
        assert self._lines is not None
        most_s = min(case.limit_s if case.most_s is None else case.most_s, at_most_s)
        limit_s = most_s if self._fresh else min(case.limit_s, most_s)
        self._fresh = False
        if not self._lines.tell(json.dumps(dict(case.spec))):
            return self._gone("its process ended between cases")
        answer = self._answer(limit_s, most_s, "no answer")
        if isinstance(answer, Outcome):
            return answer
        reason, lost = answer.get("reason", ""), ""
        if answer["status"] == "failed" and _BROKEN.search(reason):
            self.close()  # whatever else ran in this process would fail too
            lost = "crashed"
        return Outcome(status=answer["status"], reason=reason, rows=answer["rows"], lost=lost)

    def close(self) -> None:
        """End the process and all that it started; a process that cannot be ended is left."""
        if self._lines is not None:
            self._lines.close()
        self._lines = None

    def _answer(self, limit_s: float, most_s: float, what: str) -> dict[str, Any] | Outcome:
        """Return the next answer. Compilation stops the clock of `limit_s`, not of `most_s`."""
        assert self._lines is not None
        begun = time.monotonic()
        compiled_s, compiling = 0.0, False
        while True:
            allowed_s = most_s if compiling else min(limit_s + compiled_s, most_s)
            line = self._lines.line(begun + allowed_s, self._waiting)
            if line is None:
                took = f"{what} after {time.monotonic() - begun:.3g} s"
                return self._hung(took + (", while compiling" if compiling else ""))
            if not line:
                return self._gone("its process died")
            answer: dict[str, Any] = json.loads(line)
            if "status" in answer:
                return answer
            compiling = answer["compiling"]
            compiled_s += answer.get("took_s", 0.0)

    def _hung(self, what: str) -> Outcome:
        """End a process that does not answer, after it has dumped its stack if it can."""
        assert self._lines is not None
        before = self._lines.said_bytes
        with contextlib.suppress(ProcessLookupError):
            self._lines.process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._lines.process.wait(_DUMP_S)
        where = frames(self._lines.said(before)) or "an unknown position"
        return self._end(f"{what}: killed at {where}", "hung", before)

    def _gone(self, what: str) -> Outcome:
        """Return the outcome of a process that died, with its last output."""
        assert self._lines is not None
        try:
            what += f" (exit status {self._lines.process.wait(PATIENCE_S)})"
        except subprocess.TimeoutExpired:
            what += " (exit status unknown)"
        return self._end(what, "crashed", self._lines.said_bytes)

    def _end(self, what: str, lost: str, log_end: int) -> Outcome:
        assert self._lines is not None
        text = self._lines.said(max(0, log_end - _LOG_BYTES), log_end)
        self.close()
        return Outcome(status="failed", reason=f"{what}. {last_words(text)}", lost=lost)


def last_words(log: str) -> str:
    """Return the end of a process's output; after a fault in native code its kind and frames."""
    _, fault, after = log.rpartition("Fatal Python error: ")
    if fault:
        return f"{fault}{after.splitlines()[0]}, at: {frames(after)}"
    said = " ".join(log.split())[-_TAIL:]
    return f"Last output: {said}" if said else "No output"


def frames(dump: str) -> str:
    r"""Return the innermost frames of a dump of `faulthandler`, and the frames of the project.

    Frames of pytest and of its callers are left out: they are the same for every test.

    >>> frames('Stack:\n  File "/a/tests/test_x.py", line 7 in check\n')
    'test_x.py:7 check'
    """
    found = []
    for path, line, name in re.findall(r'File "([^"]*)", line (\d+) in (\S+)', dump):
        parts = Path(path).parts
        if parts[-1] in _HARNESS:
            break
        if not {"_pytest", "pluggy"} & set(parts):
            found.append((f"{parts[-1]}:{line} {name}", "site-packages" not in parts))
    shown = [what for n, (what, own) in enumerate(found) if n < _INNERMOST or own]
    return ", ".join(shown[:_FRAMES])
