"""Speedup of a placement over the unscaled model: three estimates, none of which predicts seconds.

`printed_speedup` is the paper's Eq. 4, `split_speedup` its Eqs. 1 to 3 with whole rows,
`counted_speedup` counts transitions. `c2c.systems.cocoserve.step` predicts seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from c2c.errors import SettingError
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
    """A speedup that depends on the mean of 1/p and on transitions only.

    Attributes:
      constant: share of an unscaled step that no copy shortens.
      shortened: share that p copies divide by p.
      per_transition: a transition over an unscaled step.
    """

    constant: float
    shortened: float
    per_transition: float = 0.0

    @classmethod
    def printed(cls, gamma: float) -> Estimate:
        """Return Eq. 4: gamma of the step is communication, whatever is copied."""
        return cls(_gamma(gamma), 1.0 - gamma)

    @classmethod
    def counted(cls, per_transition: float) -> Estimate:
        """Return the estimate that counts transitions."""
        if not per_transition >= 0:
            raise SettingError("per_transition", per_transition, "a number, at least 0")
        return cls(0.0, 1.0, per_transition)

    def __call__(self, inverse: float, transitions: int) -> float:
        """Return the speedup at a mean of 1/p and so many transitions."""
        return 1.0 / self.cost(inverse, transitions)

    def cost(self, inverse: float, transitions: int) -> float:
        """Return the step over an unscaled one."""
        return self.constant + self.shortened * inverse + self.per_transition * transitions

    def of(self, placement: Placement) -> float:
        """Return the speedup of a placement."""
        return self(_mean_inverse(placement.counts), transitions(placement))


def printed_speedup(copies: Sequence[int], gamma: float) -> float:
    """Return Eq. 4: 1 / (gamma + (1 - gamma) / n * sum 1/p).

    Args:
      copies: p of each layer, the original included.
      gamma: see `gamma_of`; a constant.
    """
    return Estimate.printed(gamma)(_mean_inverse(copies), 0)


def split_speedup(
    rows: Table, gamma: float, *, rates: Table | None = None, links: Table | None = None
) -> float:
    """Return Eqs. 1 to 3: a layer ends with its slowest copy, and rows of copies are transfers.

    Args:
      rows: of each layer, the rows of each copy, the original first.
      gamma: see `gamma_of`; of a copy at rate and link 1.
      rates: compute rate of each copy over that of the unscaled device; None: all 1.
      links: rate of the link to each copy, the original's unused; None: all 1.

    Raises:
      SettingError: layers with other sums of rows, or a rate that is not above 0.
    """
    batch = sum(rows[0])
    if any(sum(each) != batch or min(each) < 0 for each in rows) or not batch > 0:
        raise SettingError("rows", rows, "numbers from 0 of each layer with one sum above 0")
    speed, link = _like(rows, rates, "rates"), _like(rows, links, "links")
    work = sum(
        max(r / c for r, c in zip(*each, strict=True)) for each in zip(rows, speed, strict=True)
    )
    moved = sum(
        r / b for each in zip(rows, link, strict=True) for r, b in list(zip(*each, strict=True))[1:]
    )
    return batch * len(rows) / (work + _gamma(gamma) * moved)


def counted_speedup(placement: Placement, per_transition: float) -> float:
    """Return 1 / (1/n * sum 1/p + per_transition * transitions)."""
    return Estimate.counted(per_transition).of(placement)


def gamma_of(transfers: float, tflops: float, gbps: float, hidden: int) -> float:
    """Return gamma of hardware, `delta C / (d B)`: 2.44 for an A100 over PCIe at d = 5,120.

    Args:
      transfers: delta, how often a row's activations cross a link in a layer.
      tflops: C, of a device.
      gbps: B, of a link.
      hidden: d.
    """
    return transfers * tflops * 1e12 / (hidden * gbps * 1e9)


def headroom(layers: int, share: float, *, of: int) -> float:
    """Return how much a batch grows if the first device's KV memory limits it.

    Args:
      layers: that have replicas.
      share: of the sequences' KV of these layers that replicas hold.
      of: layers of the model.

    Raises:
      SettingError: replicas hold all KV of all layers, or the share is none.
    """
    if not 0 <= share <= 1:
        raise SettingError("share", share, "a share in [0, 1]")
    if not 0 <= layers <= of or share * layers == of:
        raise SettingError("layers", layers, f"0 to {of}, and not all with a share of 1")
    return 1.0 / (1.0 - share * layers / of)


def transitions(placement: Placement) -> int:
    """Return begins and ends of runs of adjacent layers on devices that are not the first."""
    before: frozenset[int] = frozenset()
    begun = 0
    for devices in placement.copies:
        held = frozenset(devices) - {placement.first}
        begun += len(held - before)
        before = held
    return 2 * begun


def changes(placement: Placement, batch: int) -> int:
    """Return boundaries of layers where rows gather and scatter.

    The partition of rows differs there; start and end have all rows on the first device.
    """
    whole = {placement.first: batch}
    parts = [whole, *placement.partitions(batch), whole]
    return sum(a != b for a, b in pairwise(parts))


def _mean_inverse(copies: Sequence[int]) -> float:
    if not copies or min(copies) < 1:
        raise SettingError("copies", list(copies), "whole numbers above 0, one a layer")
    return sum(1.0 / p for p in copies) / len(copies)


def _gamma(gamma: float) -> float:
    if not 0 <= gamma < float("inf"):
        raise SettingError("gamma", gamma, "a finite number, at least 0")
    return gamma


def _like(rows: Table, given: Table | None, name: str) -> Table:
    if given is None:
        return [[1.0] * len(each) for each in rows]
    if [len(g) for g in given] != [len(r) for r in rows] or not all(
        v > 0 for g in given for v in g
    ):
        raise SettingError(name, given, "a number above 0 for each copy of each layer")
    return given
