"""Distances of a prediction from live runs and of those from each other, and the verdict."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.serving.replaying import Comparison

__all__ = ["FLOORS", "TARGETS", "Judged", "judge", "verdict"]

TARGETS = {
    ("tpot_s", 50): 0.02, ("e2e_s", 50): 0.02, ("ttft_s", 50): 0.10,
    ("tpot_s", 95): 0.15, ("e2e_s", 95): 0.15, ("ttft_s", 95): 0.15,
}  # fmt: skip
"""Largest errors that are aimed at, as shares; a 99th percentile is told, and has none."""
FLOORS = 1.5
"""Times the spread of live runs that an error may have where that is more than its target."""
_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A percentile of a figure under a load, medians over runs of the same requests.

    Attributes:
      load: share of the capacity.
      name: of the figure.
      share: the percentile.
      live_s: what was measured.
      simulated_s: what was predicted.
      floor: how far apart the live runs are, largest over least, less one; 0 of one run.
      target: error that is aimed at; None: it is only told.
    """

    load: float
    name: str
    share: int
    live_s: float
    simulated_s: float
    floor: float
    target: float | None

    @property
    def error(self) -> float:
        """Predicted over live, less one."""
        return self.simulated_s / self.live_s - 1.0

    @property
    def is_met(self) -> bool:
        """True if the error is within the target, if there is one."""
        return self.target is None or abs(self.error) <= self.target

    @property
    def is_noise(self) -> bool:
        """True if it is within what live runs differ by, whatever the target."""
        return abs(self.error) <= FLOORS * self.floor

    def as_text(self) -> str:
        """Return it in words."""
        asked = "" if self.target is None else f" ({100 * self.target:g} asked)"
        return (
            f"{self.name.removesuffix('_s')} p{self.share} at {100 * self.load:g} % "
            f"{100 * self.error:+.1f} %{asked}"
        )


def judge(load: float, runs: Sequence[Sequence[Comparison]]) -> list[Judged]:
    """Return what several live runs of the same requests say of their predictions.

    Args:
      load: share of the capacity.
      runs: of each the comparison with its own prediction.
    """
    found = []
    for each in zip(*runs, strict=True):
        live = [one.live_s for one in each]
        name, share = each[0].name, each[0].share
        found.append(
            Judged(
                load=load, name=name, share=share, live_s=statistics.median(live),
                simulated_s=statistics.median(one.simulated_s for one in each),
                floor=max(live) / min(live) - 1.0, target=TARGETS.get((name, share)),
            )
        )  # fmt: skip
    return found


def verdict(found: Sequence[Judged]) -> str:
    """Return in a line whether the prediction holds, and where it does not."""
    missed = [one for one in found if not one.is_met]
    asked = sum(one.target is not None for one in found)
    if not missed:
        return f"HOLDS: all {asked} errors are within their targets"
    within = f"{asked - len(missed)} of {asked} errors are within their targets"
    noise = _listed([one for one in missed if one.is_noise])
    off = _listed([one for one in missed if not one.is_noise])
    if not off:
        return f"HOLDS TO {FLOORS:g} x THE FLOOR ONLY: {within}; beyond them: {noise}"
    rest = f"; beyond their targets alone: {noise}" if noise else ""
    return f"DOES NOT HOLD: {within}; beyond them and {FLOORS:g} x the floor: {off}{rest}"


def _listed(missed: Sequence[Judged]) -> str:
    """Return the worst in words, and how many more there are."""
    worst = sorted(missed, key=lambda one: -abs(one.error) / (one.target or 1.0))
    said = [f"{one.as_text()}, runs {100 * one.floor:.1f} % apart" for one in worst[:_LISTED]]
    return "; ".join(said) + (f" and {len(worst) - _LISTED} more" if len(worst) > _LISTED else "")
