"""Tests that go wrong in every way in which a kernel's test on a GPU can; see `rehearsal`."""

from __future__ import annotations

import os
import signal
import time

import pytest

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("number", [1, 2, 3])
def test_that_passes(number: int) -> None:
    """Pass."""
    assert number > 0


def test_that_fails() -> None:
    """Find a wrong value."""
    assert 1 + 1 == 3, "row 5, column 7: worst ratio 4.1"


def test_that_hangs() -> None:
    """Wait for a device that never answers."""
    time.sleep(3600)


def test_after_a_hang() -> None:
    """Pass, in a new process."""


def test_that_hangs_and_cannot_say_where() -> None:
    """Hang like a driver's call that no signal reaches."""
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL})
    time.sleep(3600)


def test_that_crashes() -> None:
    """End the process as a fault in native code does."""
    os.kill(os.getpid(), signal.SIGSEGV)


def test_after_a_crash() -> None:
    """Pass, in a new process."""


def test_that_exits() -> None:
    """End the process without a word."""
    os._exit(7)


def test_that_is_skipped() -> None:
    """Miss something."""
    pytest.skip("this device has no such unit")


@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_family_that_hangs(cluster: int) -> None:
    """Hang whatever the parameter: two of these are enough to know it."""
    time.sleep(3600 * cluster)


def test_last() -> None:
    """Pass."""
