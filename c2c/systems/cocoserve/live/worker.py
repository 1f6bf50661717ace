"""Worker process over several devices with changing layout.

python -m c2c.systems.cocoserve.live.worker <socket> <place> <generation>
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from c2c.engine import messages as say
from c2c.engine.residents import Residents
from c2c.engine.worker import main
from c2c.errors import SettingError
from c2c.systems.cocoserve.live.relayout import Moved, Relayout, ready_to_move
from c2c.systems.cocoserve.live.spread import OverDevices, Spread
from c2c.transformer import KvPool, Lease, Model, Runner
from c2c.transformer.layers.pages import OutOfPages
from c2c.transformer.over_pools import Path

__all__ = ["Spreading"]

_log = logging.getLogger("c2c.engine")


@dataclass(slots=True, eq=False)
class _Change:
    asked: say.Relayout
    under_way: Relayout | None = None  # None: not started, or waiting for blocks
    compiled: int = 0  # executables compiled before it
    longest_s: float = 0.0  # longest piece
    waits: bool = False  # True once it had to wait for blocks


class Spreading(Residents):
    """Instances over a worker's devices, and changes of their variants."""

    def _open_pool(self) -> KvPool:
        self._pools = self._open_pools()
        self._moved: dict[int, int] = {}  # request: new home
        self._changes: deque[_Change] = deque()  # done in order
        return self._pools[0]

    def _made(self, model: Model, lease: Lease | None = None) -> Runner:  # noqa: ARG002 (the base class passes it)
        over = OverDevices(
            model.params, model.spec, model.linear, self._pools, self._shapes,
            executables=self._executables,
        )  # fmt: skip
        self._become(over, 0)
        return Runner(over, self._shapes)

    def _warm(self, runner: Runner, *, masks: bool, done: Callable[[], None]) -> None:
        super()._warm(runner, masks=masks, done=done)
        ready_to_move(_executor(runner))

    def _spread(self, variant: int) -> Spread:
        target = self._setup.variants[variant]
        return Spread(target.copies, tuple(self._setup.homes[home] for home in target.homes))

    def _become(self, over: OverDevices, variant: int) -> None:
        if over.spread != self._spread(variant):
            change = Relayout(over, self._spread(variant))
            while change.advance() is None:
                pass

    def load(self, load: say.Load) -> None:
        """Make a model runnable in a variant."""
        super().load(load)
        self._become(_executor(self._runners[load.instance]), load.variant)
        self._moved = dict(load.moved)

    def unload(self, instance: int) -> None:
        """Free an instance; its pending changes are cancelled."""
        for change in [c for c in self._changes if c.asked.instance == instance]:
            if change.under_way is not None:
                change.under_way.cancel()
            self._changes.remove(change)
        super().unload(instance)

    def _submit(self, instance: int, submit: say.Submit) -> None:
        over = _executor(self._runners[instance])
        over.planned[submit.request] = self._path(over, submit.request, submit.home)
        super()._submit(instance, submit)

    def _path(self, over: OverDevices, request: int, home: int) -> Path | None:
        for number in (home, self._moved.get(request, home)):
            if over.spread.has(self._setup.homes[number]):
                return self._setup.homes[number]
        return None

    def relayout(self, relayout: say.Relayout) -> None:
        """Queue a change of variant; nothing is copied yet."""
        self._changes.append(_Change(asked=relayout, compiled=self.compiled))

    @property
    def is_changing(self) -> bool:
        """True if `advance` can make progress now."""
        change = self._changes[0] if self._changes else None
        return change is not None and (change.under_way is not None or not change.waits)

    def advance(self) -> say.Relaid | None:
        """Copy the next piece; return totals after the change."""
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
            longest_s=change.longest_s, compiled=self.compiled - change.compiled,
        )  # fmt: skip

    def _piece(self, change: _Change) -> Moved | None:
        command = change.asked
        try:
            if change.under_way is None:
                over = _executor(self._runners[command.instance])
                homes = {request: self._setup.homes[home] for request, home in command.moved}
                change.under_way = Relayout(over, self._spread(command.variant), homes)
            return change.under_way.advance()
        except (OutOfPages, SettingError) as error:
            change.under_way = None
            if not change.waits:
                change.waits = True
                _log.warning("the change of layout is postponed: %s", error)
            return None


def _executor(runner: Runner) -> OverDevices:
    assert isinstance(runner.executor, OverDevices)
    return runner.executor


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Spreading))
