"""Processes that work for a command: it alone minds signals, and they end with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import Any

from c2c.errors import SettingError

__all__ = ["available_cores", "end_workers", "worker_pool", "workers_of"]


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def workers_of(given: object, field: str) -> int:
    """Return how many processes to use: those asked for, or as many as there are cores.

    Raises:
      SettingError: no whole number, or fewer than one.
    """
    if given is None:
        return available_cores()
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise SettingError(field, given, "a whole number above 0, or null for all cores")
    return given


def worker_pool(
    workers: int, begin: Callable[..., None] | None = None, given: tuple[Any, ...] = ()
) -> ProcessPoolExecutor:
    """Return processes that start anew, without what this one holds.

    Args:
      workers: how many at most.
      begin: what each calls before its first task, with `given`.
      given: may hold what only a starting process can inherit, such as shared numbers.
    """
    return ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(begin, given),
    )


def end_workers() -> None:
    """End all processes of this one, whatever they do."""
    for child in multiprocessing.active_children():
        child.terminate()


def _begin(begin: Callable[..., None] | None, given: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if begin is not None:
        begin(*given)
