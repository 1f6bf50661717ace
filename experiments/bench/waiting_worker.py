"""A worker that waits in place of computing, for `experiments.bench.outside`.

    python -m experiments.bench.waiting_worker <socket> <place> <generation>

It sends the frames of a real worker: tokens, ends and seconds.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from c2c.engine.messages import Load, Run, Setup, Stepped
from c2c.engine.worker import main

__all__ = ["Waiting"]

WAIT_S = "C2C_BENCH_WAIT_S"
CORES = "C2C_BENCH_CORES"  # workers' cores, as numbers with commas


@dataclass(slots=True)
class _Stay:
    new: int
    got: int = 0


class Waiting:
    """Substitute of `c2c.engine.residents.Residents` that computes nothing."""

    def __init__(self, setup: Setup, told: Callable[[Any], None]) -> None:
        """Read the seconds a step from the environment; open no model."""
        self.failed: dict[str, str] = {}
        self.compiled = self.loaded = 0
        self._step_s = float(os.environ[WAIT_S])
        self._stays: dict[int, _Stay] = {}
        del setup, told

    is_changing = False

    def load(self, load: Load) -> None:
        """Do nothing: there is no model to load."""

    def advance(self) -> None:
        """Do nothing: there is no layout to change."""

    def unload(self, instance: int) -> None:
        """Do nothing: an instance has no memory to free."""

    def drop(self, model: str) -> None:
        """Do nothing: a model has no weights to unmap."""

    def free(self, requests: tuple[int, ...]) -> None:
        """Forget requests."""
        for request in requests:
            self._stays.pop(request, None)

    def run(self, run: Run, is_interrupted: Callable[[], bool]) -> Iterator[Stepped]:
        """Wait once a step of a plan; yield a token of each of its requests."""
        for submit in run.submits:
            self._stays[submit.request] = _Stay(submit.new)
        who = (*run.decodes, *(fill.request for fill in run.fills))
        for number in range(run.steps):
            begun_s = time.perf_counter()
            time.sleep(self._step_s)
            tokens = tuple((request, 7, self._next(request)) for request in who)
            seconds = time.perf_counter() - begun_s
            is_last = number + 1 == run.steps or any(why for *_, why in tokens)
            is_last = is_last or is_interrupted()
            yield Stepped(
                plan=run.plan, number=number, is_last=is_last, tokens=tokens, seconds=seconds,
                host_s=0.0, calls=((64 if run.fills else 0, 8),), kv_tokens=64 * len(who),
                compiled=0,
            )  # fmt: skip
            if is_last:
                return

    def _next(self, request: int) -> str | None:
        stay = self._stays[request]
        stay.got += 1
        if stay.got < stay.new:
            return None
        del self._stays[request]
        return "length"


if __name__ == "__main__":
    if os.environ.get(CORES):
        os.sched_setaffinity(0, {int(core) for core in os.environ[CORES].split(",")})
    sys.exit(main(sys.argv[1:], Waiting))
