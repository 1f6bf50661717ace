"""Placement with the shortest predicted step within memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from c2c.errors import SettingError
from c2c.systems.cocoserve.modules import LAYER, kv_bytes, module_of
from c2c.systems.cocoserve.placement import Placement
from c2c.systems.cocoserve.step import Devices, step_time

__all__ = ["fastest"]


@dataclass(frozen=True, slots=True)
class _Run:
    """Copies of layers `begin` to `end` (excluded), for `most_rows` rows."""

    begin: int
    end: int
    most_rows: int


type _Runs = Mapping[int, _Run]
type _Shares = tuple[tuple[int, int], ...]  # device and rows, the first device first


def fastest(
    devices: Devices, free_bytes: Mapping[int, float], *, batch: int, context: int, first: int = 0
) -> Placement:
    """Return a placement with a nearly shortest step, at most a run a device.

    Args:
      free_bytes: by device: on the first for KV, else for copies and their KV.
      context: tokens of KV a row.

    Raises:
      SettingError: a batch whose KV has no room.
    """
    search = _Search(devices, free_bytes, batch, context, first)
    runs: _Runs = {}
    cost = search.cost(runs)
    is_better = True
    while is_better:
        is_better = False
        for device in sorted(free_bytes, key=lambda d: (-free_bytes[d], d)):
            if device == first or devices.node.link(first, device) is None:
                continue
            others = {d: run for d, run in runs.items() if d != device}
            options = [others, *({**others, device: r} for r in search.runs(device, others))]
            best = min(options, key=search.cost)
            if (trial := search.cost(best)) < cost:
                runs, cost, is_better = best, trial, True
    if cost[0] > 0:
        needed = batch * kv_bytes(devices.spec, context) * devices.spec.layers
        raise SettingError(
            "batch", batch, f"a batch whose KV fits on device {first}",
            f"It needs {needed:,} bytes, {int(cost[0]):,} more than are free.",
        )  # fmt: skip
    return search.placement(runs)


@dataclass(frozen=True, slots=True)
class _Search:
    devices: Devices
    free_bytes: Mapping[int, float]
    batch: int
    context: int
    first: int
    shares: dict[tuple[tuple[int, int], ...], _Shares] = field(default_factory=dict)

    def cost(self, runs: _Runs) -> tuple[float, float]:
        """Return the bytes that the first device lacks and the seconds of a step."""
        placement = self.placement(runs)
        layer_rows = sum(rows[0] for rows in placement.rows)
        lacking = (
            layer_rows * kv_bytes(self.devices.spec, self.context) - self.free_bytes[self.first]
        )
        step = step_time(placement, self.devices, batch=self.batch, context=self.context)
        return max(0.0, lacking), step.seconds

    def runs(self, device: int, others: _Runs) -> Iterator[_Run]:
        n = self.devices.spec.layers
        layer_bytes = module_of(self.devices.spec, LAYER).allocated_bytes
        row = kv_bytes(self.devices.spec, self.context)
        ends = {0, n, *(end for run in others.values() for end in (run.begin, run.end))}
        for rows in range(1, self.batch + 1):
            length = min(n, int(self.free_bytes[device] // (layer_bytes + rows * row)))
            if length < 1:
                return
            for begin in sorted({e for end in ends for e in (end, end - length)}):
                if 0 <= begin < n:
                    yield _Run(begin, min(n, begin + length), rows)

    def placement(self, runs: _Runs) -> Placement:
        layers = [
            self._shared(
                tuple((d, r.most_rows) for d, r in sorted(runs.items()) if r.begin <= layer < r.end)
            )
            for layer in range(self.devices.spec.layers)
        ]
        return Placement(
            tuple(tuple(d for d, _ in shares) for shares in layers),
            tuple(tuple(rows for _, rows in shares) for shares in layers),
            first=self.first,
        )

    def _shared(self, limits: tuple[tuple[int, int], ...]) -> _Shares:
        if limits not in self.shares:
            most = {self.first: self.batch, **dict(limits)}
            rows = dict.fromkeys(most, 0)
            for _ in range(self.batch):
                ends = {
                    d: self.devices.layer_s(d, rows[d] + 1, self.context)
                    for d in most
                    if rows[d] < most[d]
                }
                rows[min(ends, key=ends.__getitem__)] += 1
            self.shares[limits] = tuple(rows.items())
        return self.shares[limits]
