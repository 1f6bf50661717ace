"""A child process that runs cases, as its parent sees it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from experiments.gpu.cases import Case, Context, Row

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 120.0
_TAIL = 600

ENVIRONMENT = {
    # Several processes share the GPU, and one must not take what another measures with.
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # A limit, not a reservation: two models in pinned memory are more than XLA's 64 GB allow for.
    "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB": "96",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a case went. `lost` says that the process did not survive it."""

    status: str  # ok, failed, skipped, out of time
    reason: str = ""
    rows: list[Row] = field(default_factory=list)
    lost: bool = False


class Child:
    """A process that runs the cases of one module, started anew after one that ended it."""

    def __init__(self, module: str, context: Context) -> None:
        self._module, self._context = module, context
        self._process: subprocess.Popen[str] | None = None
        self._answers: IO[bytes] | None = None
        self._buffer = b""
        self._log: IO[bytes] | None = None

    def run(self, case: Case, limit_s: float) -> Outcome:
        """Run a case; end the process if there is no answer after `limit_s` seconds.

        Starting the process and jax counts apart, up to `START_LIMIT_S`.
        """
        if self._process is None:
            failure = self._start()
            if failure is not None:
                return failure
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(dict(case.spec)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._gone("ended between cases")
        answer = self._answer(limit_s)
        if isinstance(answer, Outcome):
            return answer
        return Outcome(
            status=answer["status"], reason=answer.get("reason", ""), rows=answer["rows"]
        )

    def close(self) -> None:
        """End the process and everything it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            if self._process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):  # what it had not read is of no use
                    self._process.stdin.close()
        for stream in (self._answers, self._log):
            if stream is not None:
                stream.close()
        self._process = self._answers = self._log = None
        self._buffer = b""

    def _start(self) -> Outcome | None:
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
            env=os.environ | {"PYTHONPATH": _python_path()} | ENVIRONMENT,
            start_new_session=True,  # so that its own children end with it
        )
        os.close(writer)
        self._answers = os.fdopen(reader, "rb", buffering=0)
        answer = self._answer(START_LIMIT_S)
        return answer if isinstance(answer, Outcome) else None

    def _answer(self, limit_s: float) -> dict[str, Any] | Outcome:
        assert self._answers is not None
        until = time.monotonic() + limit_s
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = until - time.monotonic()
                if left <= 0 or not waiting.select(left):
                    return self._gone(f"no answer after {limit_s:.0f} s: ended", timed_out=True)
                piece = self._answers.read(1 << 16)
                if not piece:
                    return self._gone("its process died")
                self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _gone(self, what: str, *, timed_out: bool = False) -> Outcome:
        assert self._process is not None
        assert self._log is not None
        if not timed_out:
            try:
                code = self._process.wait(5)
                what += f" (exit status {code})"
            except subprocess.TimeoutExpired:
                what += " (its end is not seen yet)"
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _TAIL))
        said = " ".join(self._log.read().decode("utf-8", "replace").split())
        self.close()
        status = "out of time" if timed_out else "failed"
        return Outcome(status=status, reason=f"{what}. It said: {said or 'nothing'}", lost=True)


def _python_path() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
