"""Speedup of a placement over the unscaled model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from c2c.errors import SettingError
from c2c.ranges import FromZero, In, Share, check_value
from c2c.systems.cocoserve.placement import Placement

__all__ = [
    "Estimate",
    "changes",
    "counted_speedup",
    "gamma_of",
    "headroom",
    "printed_speedup",
    "split_speedup",
    "transitions",
]

Table = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Speedup from the mean of 1/p and the number of transitions.

    Attributes:
      constant: share of an unscaled step, unaffected by copies.
      shortened: share of an unscaled step, divided by p copies.
      per_transition: time of a transition, in unscaled steps.
    """

    constant: float
    shortened: float
    per_transition: float = 0.0

    @classmethod
    def printed(cls, gamma: float) -> Estimate:
        """Return the estimate of Eq. 4."""
        return cls(_gamma(gamma), 1.0 - gamma)

    @classmethod
    def counted(cls, per_transition: float) -> Estimate:
        """Return the estimate that counts transitions."""
        check_value(per_transition, Annotated[float, In("[0, inf]")], "per_transition")
        return cls(0.0, 1.0, per_transition)

    def __call__(self, inverse: float, transitions: int) -> float:
        """Return the speedup at a mean of 1/p (`inverse`) and transitions."""
        return 1.0 / self.cost(inverse, transitions)

    def cost(self, inverse: float, transitions: int) -> float:
        """Return a step's time, in unscaled steps."""
        return self.constant + self.shortened * inverse + self.per_transition * transitions

    def of(self, placement: Placement) -> float:
        """Return a placement's speedup."""
        return self(_mean_inverse(placement.counts), transitions(placement))


def printed_speedup(copies: Sequence[int], gamma: float) -> float:
    """Return the speedup of Eq. 4: 1 / (gamma + (1 - gamma) / n * sum 1/p).

    Args:
      copies: p of each layer.
    """
    return Estimate.printed(gamma)(_mean_inverse(copies), 0)


def split_speedup(
    rows: Table, gamma: float, *, rates: Table | None = None, links: Table | None = None
) -> float:
    """Return the speedup of Eqs. 1 to 3: layers end with their slowest copy.

    Args:
      rows: [layer][copy], the original first.
      rates: compute rates of copies over the unscaled device's.
      links: relative link rates.

    Raises:
      SettingError: unequal sums of rows, or a rate not above 0.
    """
    batch = sum(rows[0])
    if any(sum(row) != batch or min(row) < 0 for row in rows) or not batch > 0:
        raise SettingError("rows", rows, "numbers from 0, with the same sum above 0 for each layer")
    speed, link = _like(rows, rates, "rates"), _like(rows, links, "links")
    work = sum(
        max(r / c for r, c in zip(*row, strict=True)) for row in zip(rows, speed, strict=True)
    )
    moved = sum(
        r / b for row in zip(rows, link, strict=True) for r, b in list(zip(*row, strict=True))[1:]
    )
    return batch * len(rows) / (work + _gamma(gamma) * moved)


def counted_speedup(placement: Placement, per_transition: float) -> float:
    """Return the speedup 1 / (1/n * sum 1/p + per_transition * transitions)."""
    return Estimate.counted(per_transition).of(placement)


def gamma_of(transfers: float, tflops: float, gbps: float, hidden: int) -> float:
    """Return gamma of hardware, `delta C / (d B)`: 2.44 for an A100 over PCIe at d = 5,120.

    Args:
      transfers: delta, link crossings of a row's activations in a layer.
      tflops: C.
      gbps: B.
      hidden: d.
    """
    return transfers * tflops * 1e12 / (hidden * gbps * 1e9)


def headroom(layers: int, share: float, *, model_layers: int) -> float:
    """Return the growth of a batch limited by the first device's KV memory.

    Args:
      share: share of these layers' KV that replicas hold.

    Raises:
      SettingError: no KV is left, or a share outside [0, 1].
    """
    check_value(share, Share, "share")
    if not 0 <= layers <= model_layers or share * layers == model_layers:
        raise SettingError("layers", layers, f"0 to {model_layers}, and not all with a share of 1")
    return 1.0 / (1.0 - share * layers / model_layers)


def transitions(placement: Placement) -> int:
    """Return begins and ends of runs off the first device."""
    before: frozenset[int] = frozenset()
    begun = 0
    for devices in placement.copies:
        others = frozenset(devices) - {placement.first}
        begun += len(others - before)
        before = others
    return 2 * begun


def changes(placement: Placement, batch: int) -> int:
    """Return the boundaries of changed partitions."""
    whole = {placement.first: batch}
    parts = [whole, *placement.partitions(batch), whole]
    return sum(a != b for a, b in pairwise(parts))


def _mean_inverse(copies: Sequence[int]) -> float:
    if not copies or min(copies) < 1:
        raise SettingError("copies", list(copies), "whole numbers above 0, one a layer")
    return sum(1.0 / p for p in copies) / len(copies)


def _gamma(gamma: float) -> float:
    check_value(gamma, FromZero, "gamma")
    return gamma


def _like(rows: Table, table: Table | None, name: str) -> Table:
    if table is None:
        return [[1.0] * len(row) for row in rows]
    if [len(g) for g in table] != [len(r) for r in rows] or not all(
        v > 0 for g in table for v in g
    ):
        raise SettingError(name, table, "a number above 0 for each copy of each layer")
    return table
