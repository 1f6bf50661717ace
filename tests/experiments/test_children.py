"""Processes that work for a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from c2c.errors import DataError, SettingError
from experiments.children import (
    Lines,
    answer_of,
    end,
    environment,
    gather,
    run,
    usable_cores,
    worker_pool,
    workers_of,
)

ECHO = "import sys\nfor line in sys.stdin:\n    print('got', line.strip(), flush=True)"


class Unending:
    """A process that a driver holds: it is killed and does not go away."""

    pid = 2**22 + 1  # above what Linux gives out

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "this would wait for ever"
        raise subprocess.TimeoutExpired("worker", timeout)


def test_a_process_that_cannot_be_ended_is_left_behind() -> None:
    unending: Any = Unending()
    assert end(unending, 0.1) is False


@pytest.mark.parametrize("apart", [True, False])
def test_a_command_is_waited_for_only_so_long_whoever_holds_its_output(apart: bool) -> None:
    program = (
        "import subprocess, sys; print('said', flush=True);"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(20)']).wait()"
    )
    begun = time.monotonic()
    done = run([sys.executable, "-c", program], limit_s=1.5, apart=apart)
    assert time.monotonic() - begun < 15
    assert (done.code, done.out) == (None, "said\n")
    quick = run([sys.executable, "-c", "import sys; sys.exit('error: no luck')"], limit_s=60)
    assert (quick.code, quick.out, quick.why) == (1, "", "no luck")


def test_an_answer_is_the_last_line_and_a_failure_says_why() -> None:
    def failed(why: str) -> Exception:
        return DataError("it", why)

    line = [sys.executable, "-c", "print('beside'); print([1, 2])"]
    assert answer_of(line, failed) == [1, 2]
    with pytest.raises(DataError, match="division by zero"):
        answer_of([sys.executable, "-c", "1 / 0"], failed)
    slow = [sys.executable, "-c", "import time; time.sleep(20)"]
    with pytest.raises(DataError, match="not finished within 1 s"):
        answer_of(slow, failed, limit_s=0.6)


@pytest.mark.parametrize("apart", [True, False])
def test_lines_are_answered_and_an_end_is_seen(apart: bool) -> None:
    with Lines([sys.executable, "-c", ECHO], apart=apart) as lines:
        for word in ("one", "two"):
            assert lines.tell(word)
            assert lines.line() == f"got {word}".encode()
        assert lines.line(time.monotonic() + 0.3) is None  # nothing was asked
        pid = lines.process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with Lines([sys.executable, "-c", "raise RuntimeError('no luck')"]) as lines:
        assert lines.line() == b""
        lines.process.wait()
        assert not lines.tell("anybody?")
        assert lines.why == "RuntimeError: no luck"


def _halved(number: int, within: Callable[[float], None]) -> float:
    within(0.5)
    if number < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0 / number


def test_results_come_in_order_and_an_error_or_a_lost_process_ends_all() -> None:
    told: list[list[float]] = []
    done: list[float] = []

    def tell(shares: Any) -> None:
        told.append(list(shares))

    asked = [(1,), (2,), (4,)]
    assert gather(_halved, asked, workers=2, tell=tell, done=done.append, lost="") == [1, 0.5, 0.25]
    assert told[-1] == [1.0, 1.0, 1.0]
    assert sorted(done) == [0.25, 0.5, 1]
    with pytest.raises(ZeroDivisionError):
        gather(_halved, [(1,), (0,)], workers=1, tell=tell, lost="")
    with pytest.raises(DataError, match="one that halved was ended"):
        gather(_halved, [(-1,)], workers=1, tell=tell, lost="that halved was ended")


def test_a_pool_does_not_outlive_its_block() -> None:
    begun = time.monotonic()

    def interrupted() -> None:
        with worker_pool(1) as pool:
            task = pool.submit(time.sleep, 30)
            while not task.running():
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - begun < 20


def test_cores_and_environments(tmp_path: Any) -> None:
    assert len(usable_cores(1)) == 1
    assert workers_of(None, "workers") == len(usable_cores())
    for wrong in (0, True, "two"):
        with pytest.raises(SettingError, match="workers"):
            workers_of(wrong, "workers")
    paths = environment(tmp_path, tmp_path / "none")["PYTHONPATH"].split(os.pathsep)
    assert str(tmp_path) in paths
    assert str(tmp_path / "none") not in paths
