"""A child process that runs cases, as its parent sees it. Every wait for it has a limit."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from experiments.children import PATIENCE_S, ROOT, end, environment
from experiments.gpu.cases import Case, Context, Row

_TAIL, _LOG_BYTES = 600, 1 << 15
_MOMENT_S = 0.2
_DUMP_S = 0.5  # for a process that hangs to write where it is
_INNERMOST, _FRAMES = 2, 6
_HARNESS = ("suite.py", "worker.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a case went.

    `lost` says that the process did not survive it: it "hung" and was ended, or it "crashed".
    """

    status: str  # ok, failed, skipped
    reason: str = ""
    rows: list[Row] = field(default_factory=list)
    lost: str = ""


class Child:
    """A process that runs the cases of one module, started anew after one that ended it."""

    def __init__(
        self, module: str, context: Context, waiting: Callable[[], object] = lambda: None
    ) -> None:
        self._module, self._context, self._waiting = module, context, waiting
        self._process: subprocess.Popen[str] | None = None
        self._answers: IO[bytes] | None = None
        self._buffer = b""
        self._log: IO[bytes] | None = None
        self._fresh = True

    def start(self, limit_s: float) -> Outcome | None:
        """Start the process if there is none; return how that failed, if it did.

        What fails here is no case's fault: none has begun.
        """
        if self._process is not None:
            return None
        reader, writer = os.pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        command = [
            *(sys.executable, "-m", "experiments.gpu.worker", self._module),
            *(json.dumps(asdict(self._context)), str(writer)),
        ]
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            command,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(writer,),
            text=True,
            cwd=ROOT,
            env=environment(),
            start_new_session=True,  # so that its own children end with it
        )
        os.close(writer)
        self._answers, self._fresh = os.fdopen(reader, "rb", buffering=0), True
        answer = self._answer(limit_s, limit_s, "did not start")
        return answer if isinstance(answer, Outcome) else None

    def run(self, case: Case, at_most_s: float) -> Outcome:
        """Run a case in the process that `start` began; end it if it does not answer in time.

        Args:
          case: its `limit_s` does not count compiling; a process's first case has `most_s`.
          at_most_s: what is left of the run.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        most_s = min(case.limit_s if case.most_s is None else case.most_s, at_most_s)
        limit_s = most_s if self._fresh else min(case.limit_s, most_s)
        self._fresh = False
        try:
            self._process.stdin.write(json.dumps(dict(case.spec)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._gone("its process ended between cases")
        answer = self._answer(limit_s, most_s, "no answer")
        if isinstance(answer, Outcome):
            return answer
        return Outcome(
            status=answer["status"], reason=answer.get("reason", ""), rows=answer["rows"]
        )

    def close(self) -> None:
        """End the process and everything it started; one that cannot be ended is left behind."""
        if self._process is not None:
            end(self._process)
            if self._process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):  # what it had not read is of no use
                    self._process.stdin.close()
        for stream in (self._answers, self._log):
            if stream is not None:
                stream.close()
        self._process = self._answers = self._log = None
        self._buffer = b""

    def _answer(self, limit_s: float, most_s: float, what: str) -> dict[str, Any] | Outcome:
        """Return the next answer; compiling stops the clock of `limit_s`, not that of `most_s`."""
        begun = time.monotonic()
        compiled_s, compiling = 0.0, False
        while True:
            allowed_s = most_s if compiling else min(limit_s + compiled_s, most_s)
            line = self._line(begun + allowed_s)
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

    def _line(self, until: float) -> bytes | None:
        """Return the next line, nothing if the process closed its end, None if time is over."""
        assert self._answers is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not waiting.select(_MOMENT_S):
                    self._waiting()
                left = until - time.monotonic()
                if not waiting.select(max(0.0, left)):
                    return None
                piece = self._answers.read(1 << 16)
                if not piece:
                    return b""
                self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _hung(self, what: str) -> Outcome:
        """End a process that does not answer, after it has said where it is, if it still can."""
        assert self._process is not None
        assert self._log is not None
        before = self._log.seek(0, os.SEEK_END)
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DUMP_S)
        self._log.seek(before)
        where = frames(self._log.read().decode("utf-8", "replace")) or "it could not say"
        return self._end(f"{what}: ended. It was at: {where}", "hung", before)

    def _gone(self, what: str) -> Outcome:
        """Return how a process died, with its last words."""
        assert self._process is not None
        assert self._log is not None
        try:
            what += f" (exit status {self._process.wait(PATIENCE_S)})"
        except subprocess.TimeoutExpired:
            what += " (its end is not seen yet)"
        return self._end(what, "crashed", self._log.seek(0, os.SEEK_END))

    def _end(self, what: str, lost: str, log_end: int) -> Outcome:
        assert self._log is not None
        self._log.seek(max(0, log_end - _LOG_BYTES))
        text = self._log.read(min(log_end, _LOG_BYTES)).decode("utf-8", "replace")
        self.close()
        return Outcome(status="failed", reason=f"{what}. {last_words(text)}", lost=lost)


def last_words(log: str) -> str:
    """Return what a process said at last; of a fault in native code, what it was and where."""
    _, fault, after = log.rpartition("Fatal Python error: ")
    if fault:
        return f"{fault}{after.splitlines()[0]}, at: {frames(after)}"
    said = " ".join(log.split())[-_TAIL:]
    return f"It said: {said}" if said else "It said nothing"


def frames(dump: str) -> str:
    r"""Return the innermost frames of a dump of `faulthandler`, and those of the project.

    Neither pytest's own nor those from which it is called: they are the same for every test.

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
