"""Models over several devices of a worker, and changes of their layout variant."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from c2c.engine import messages as say
from c2c.errors import SettingError
from c2c.transformer import KvPool, Model, Runner, Shapes
from c2c.transformer.executables import Executables
from c2c.transformer.pages import OutOfPages
from c2c.transformer.relayout import Moved, Relayout, ready_to_move
from c2c.transformer.spread import OverDevices, Path, Spread

__all__ = ["Spreading"]

_log = logging.getLogger("c2c.engine")
_jax: Any = jax  # parts of it are untyped


@dataclass(slots=True, eq=False)
class _Change:
    """A change of an instance's variant: the frame and its progress."""

    asked: say.Relayout
    under_way: Relayout | None = None  # None: not started, or waiting for blocks
    compiled: int = 0  # executables compiled before it
    longest_s: float = 0.0  # longest piece
    waits: bool = False  # True once it had to wait for blocks


class Spreading:
    """Runners over the devices of a worker, and changes of their variants."""

    def __init__(self, setup: say.Setup, executables: Executables | None, dtype: Any) -> None:
        """Allocate the pools of all devices."""
        devices = jax.devices()
        if len(devices) < setup.devices:
            raise SettingError("devices", len(devices), f"at least {setup.devices} for a worker")
        self._setup, self._executables = setup, executables
        self._shapes = Shapes(rows=setup.rows, budgets=setup.budgets, width=setup.width)
        self.pools = tuple(
            KvPool(
                setup.superblocks, setup.superblock, dtype=dtype, executables=executables,
                device=device,
            )
            for device in devices[: setup.devices]
        )  # fmt: skip
        # Placing an array on a device for the first time takes longer than a step.
        _jax.block_until_ready([jax.device_put(np.zeros(1), pool.device) for pool in self.pools])
        self._moved: dict[int, int] = {}  # request: new home
        self._changes: deque[_Change] = deque()  # done in order
        self._runners: dict[int, Runner] = {}

    def made(self, model: Model) -> Runner:
        """Return a runner of a model in the first variant."""
        over = OverDevices(
            model.params, model.spec, model.linear, self.pools, self._shapes,
            executables=self._executables,
        )  # fmt: skip
        self._become(over, 0)
        return Runner(over, self._shapes)

    @staticmethod
    def ready(runner: Runner) -> None:
        """Compile the executables of a change of variant."""
        assert isinstance(runner.executor, OverDevices)
        ready_to_move(runner.executor)

    def spread(self, variant: int) -> Spread:
        """Return the devices of a variant's layers, and the paths of its requests."""
        told = self._setup.variants[variant]
        return Spread(told.copies, tuple(self._setup.homes[home] for home in told.homes))

    def _become(self, over: OverDevices, variant: int) -> None:
        """Switch a model without requests to a variant."""
        if over.spread != self.spread(variant):
            change = Relayout(over, self.spread(variant))
            while change.advance() is None:
                pass

    def opened(
        self, instance: int, runner: Runner, variant: int, moved: Iterable[tuple[int, int]]
    ) -> None:
        """Add an instance without requests, in a variant."""
        assert isinstance(runner.executor, OverDevices)
        self._become(runner.executor, variant)
        self._moved, self._runners[instance] = dict(moved), runner

    def closed(self, instance: int) -> None:
        """Remove an instance; its pending changes are cancelled."""
        for change in [c for c in self._changes if c.asked.instance == instance]:
            if change.under_way is not None:
                change.under_way.cancel()
            self._changes.remove(change)
        self._runners.pop(instance, None)

    def path(self, over: OverDevices, request: int, home: int) -> Path | None:
        """Return the path of a new request; None: any of the current variant's.

        The scheduler's choice may refer to the previous variant.
        """
        for number in (home, self._moved.get(request, home)):
            if over.spread.has(self._setup.homes[number]):
                return self._setup.homes[number]
        return None

    def begin(self, asked: say.Relayout, compiled: int) -> None:
        """Queue a change; nothing is copied yet."""
        self._changes.append(_Change(asked=asked, compiled=compiled))

    @property
    def is_changing(self) -> bool:
        """True if `advance` can make progress now."""
        change = self._changes[0] if self._changes else None
        return change is not None and (change.under_way is not None or not change.waits)

    def advance(self, compiled: int) -> say.Relaid | None:
        """Copy the next piece, between two steps; return totals once the variant has changed.

        If a device lacks blocks, the change starts again later: the loop has ensured that blocks
        become free.
        """
        if not self._changes:
            return None
        change = self._changes[0]
        begun_s, moved = time.perf_counter(), self._piece(change)
        change.longest_s = max(change.longest_s, time.perf_counter() - begun_s)
        if moved is None:
            return None
        self._changes.popleft()
        self._moved = dict(change.asked.moved)
        return say.Relaid(
            instance=change.asked.instance, variant=change.asked.variant,
            weight_bytes=moved.weight_bytes, kv_bytes=moved.kv_bytes, pieces=moved.pieces,
            longest_s=change.longest_s, compiled=compiled - change.compiled,
        )  # fmt: skip

    def _piece(self, change: _Change) -> Moved | None:
        asked = change.asked
        try:
            if change.under_way is None:
                over = self._runners[asked.instance].executor
                assert isinstance(over, OverDevices)
                homes = {request: self._setup.homes[home] for request, home in asked.moved}
                change.under_way = Relayout(over, self.spread(asked.variant), homes)
            return change.under_way.advance()
        except (OutOfPages, SettingError) as error:
            change.under_way = None
            if not change.waits:
                change.waits = True
                _log.warning("the change of layout is postponed: %s", error)
            return None
