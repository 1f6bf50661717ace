"""Periodic looks of a layout policy at recent requests."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

import numpy as np

from c2c.policies import LAYOUT_DTYPE, next_layout
from c2c.serving import FAIL_NONE, Change, ChipLayouts, Prepared
from c2c.serving.state import Serving
from c2c.workloads import RequestBlock, Workload

__all__ = ["SEEN_DTYPE", "Estimate", "Recuts", "ended", "last_of", "under_way"]

# A request that came, as a port has seen it.
SEEN_DTYPE = np.dtype(
    [
        ("arrival_s", "f8"),
        ("id", "i8"),
        ("model", "i8"),
        ("prompt", "i8"),
        ("output", "i8"),  # tokens of the whole answer; -1: it has not ended
    ]
)

_FIRST_LOOK_S: Final = 1.0  # nothing is known of the rate before; then at twice the time at most


class Estimate(Protocol):
    """Summary of a workload's last requests, all by default, see `simulator.estimate`."""

    def __call__(
        self, prepared: Prepared, workload: Workload, last: int = 0, *, compiled: bool = True
    ) -> Mapping[str, Any]:
        """Serve the workload alone."""


def ended(records: Any) -> Any:
    """Return ended requests (`RECORD_DTYPE`) as rows of `SEEN_DTYPE`."""
    rows = np.zeros(len(records), SEEN_DTYPE)
    for name in ("arrival_s", "id", "model"):
        rows[name] = records[name]
    rows["prompt"] = records["prompt_tokens"]
    rows["output"] = np.where(records["failure"] == FAIL_NONE, records["output_tokens"], -1)
    return rows


def under_way(state: Serving) -> Any:
    """Return waiting and running requests as rows of `SEEN_DTYPE`."""
    is_used = np.ones(len(state.request), bool)
    is_used[state.free_slots[: state.count[0].free_slots]] = False
    found = state.request[is_used]
    rows = np.zeros(len(found), SEEN_DTYPE)
    for name in ("arrival_s", "id", "model"):
        rows[name] = found[name]
    rows["prompt"], rows["output"] = found["prompt"] - found["carried"], -1
    return rows


def last_of(count: int, *parts: Any) -> Any:
    """Return the `count` most recent requests, in order of arrival."""
    return np.sort(np.concatenate(parts), order=("arrival_s", "id"))[-count:]


class Recuts:
    """Looks of the policy: their times, inputs and result.

    A look simulates the most recent requests alone on every layout (the estimate of `mig=planned`):
    the last ones are compared, earlier ones fill the chips. Unfinished answers get the mean length
    of finished ones. The price of a layout is the number of compared requests that a change just
    before them would have made late, by the same estimate. It is at least the number of arrivals
    while slices are destroyed and created.

    Args:
      prepared: prepared setup whose policy may change layouts.
      estimate: function that serves a workload alone.
    """

    def __init__(self, prepared: Prepared, estimate: Estimate) -> None:
        self._prepared, self._estimate = prepared, estimate
        self._policy = prepared.setup.system.recut
        self._traits = prepared.setup.system.recut_traits
        self._count = len(prepared.layouts.choices)
        has_memory = hasattr(self._policy, "memory")
        self._own = self._policy.memory(self._count) if has_memory else None
        self._here, self._since_s, self.look_s = 0, 0.0, _FIRST_LOOK_S

    @property
    def reads_back(self) -> int:
        """Number of most recent requests that the policy reads."""
        return self._traits.requests + self._traits.before

    def begin(self, now_s: float) -> None:
        """Restart after a change of layout."""
        self._since_s, self.look_s = now_s, now_s + _FIRST_LOOK_S

    def look(self, seen: Any, now_s: float) -> Change | None:
        """Return the change that the policy wants now, if any.

        Args:
          seen: the `reads_back` most recent requests, rows of `SEEN_DTYPE`, by arrival.
          now_s: current time.
        """
        wanted, passed_s = self._traits.requests, now_s - self._since_s
        new = int((seen["arrival_s"] > self._since_s).sum())
        if new < wanted or not (seen["output"] >= 0).any():
            wait_s = (wanted - new) * passed_s / new if new else math.inf
            self.look_s = now_s + min(max(wait_s, 1.0), passed_s)
            return None
        self._since_s = now_s
        self.look_s = now_s + max(1.0, passed_s * wanted / new)
        row = self._chosen(_block(seen), wanted, now_s)
        if row in (-1, self._here):
            return None
        change = self._change(row, now_s)
        self._here = row
        return change

    def _chosen(self, block: RequestBlock, wanted: int, now_s: float) -> int:
        """Return the policy's row after the exact price of its choice is known."""
        table = self._weighed(block, wanted)
        known: set[int] = {-1, self._here}
        while True:
            own = copy.deepcopy(self._own)  # it takes note of each look once
            row = int(next_layout(self._policy, own, table, self._count, now_s))
            if row in known:
                self._own = own
                return row
            known.add(row)
            table[row].price = max(table[row].price, self._price(table[row].in_time, row, block))

    def _change(self, layout: int, at_s: float) -> Change:
        return self._prepared.layouts.change(
            self._prepared.setup.platform, self._here, layout, at_s=at_s, drain=self._traits.drain
        )

    def _weighed(self, block: RequestBlock, wanted: int) -> Any:
        layouts = self._prepared.layouts
        table: Any = np.zeros(self._count, LAYOUT_DTYPE).view(np.recarray)
        here = self._in_time(layouts.only(self._here), block)
        table.requests = table.in_time = wanted  # the most there is to gain
        table[self._here].is_here, table[self._here].in_time = 1, here
        is_well = here >= (1.0 - self._traits.margin) * wanted
        comes_s = block.arrival_s[-wanted:] - block.arrival_s[-wanted]
        for k, row in enumerate(table):
            if k != self._here and not is_well:
                row.in_time = self._in_time(layouts.only(k), block)
            if k != self._here:
                row.price = np.searchsorted(comes_s, self._change(k, 0.0).seconds)
        return table

    def _price(self, in_time: float, layout: int, block: RequestBlock) -> float:
        at_s = float(block.arrival_s[-self._traits.requests])
        change = self._change(layout, at_s)
        return in_time - self._in_time(self._prepared.layouts.changed(change), block)

    def _in_time(self, layouts: ChipLayouts, block: RequestBlock) -> float:
        last = self._traits.requests
        alone = replace(
            self._prepared,
            layouts=layouts,
            present=np.tile(layouts.present, self._prepared.setup.superchips),
        )
        names = tuple(d.name for d in alone.setup.deployments)
        workload = Workload(names, lambda: iter([block]), {"requests": len(block)})
        share = self._estimate(alone, workload, last)["attainment"]["both"]
        return round((share or 0.0) * last)


def _block(seen: Any) -> RequestBlock:
    output, known = seen["output"].astype(float), seen["output"] >= 0
    for m in np.unique(seen["model"][~known]):
        same = known & (seen["model"] == m)
        of = same if same.any() else known
        output[~known & (seen["model"] == m)] = np.rint(seen["output"][of].mean())
    return RequestBlock(
        arrival_s=seen["arrival_s"] - seen["arrival_s"][0],
        model=seen["model"].astype(np.int32),
        prompt_tokens=seen["prompt"].astype(np.int32),
        output_tokens=np.maximum(1, output).astype(np.int32),
    )
