"""Python in other processes, driven line by line, for tests of what they share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[3]

_LOOP = """
import sys, traceback
names = {}
for line in sys.stdin:
    try:
        print(repr(eval(compile(line.strip(), "line", "eval"), names)), flush=True)
    except SyntaxError:
        try:
            exec(line.strip(), names)
            print(None, flush=True)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
"""


class Other:
    """A Python process that evaluates one line at a time."""

    def __init__(self, *lines: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LOOP],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        for line in lines:
            answer = self(line)
            assert answer == "None", answer

    def __call__(self, line: str) -> str:
        """Return the repr of the value of `line`, or the type and text of its error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().rstrip("\n")

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """Let it run out of lines; return its exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        status = self._process.wait(30)
        self._process.stdout.close()
        return status

    def __enter__(self) -> Other:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._process.stdin or self._process.stdin.closed:
            return
        if self._process.poll() is None:
            self.end()
        else:
            self._process.stdin.close()
            self._process.stdout.close()  # type: ignore[union-attr]


@contextmanager
def opened(path: Path) -> Iterator[Other]:
    """A process that has the pool at `path` open as `pool`."""
    with Other(
        "from pallas_kernels.host_memory import *", f"pool = SharedPool.open({str(path)!r})"
    ) as other:
        yield other
