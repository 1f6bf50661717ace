"""Verdict on a prediction."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.serving.live_run_simulation import Comparison

__all__ = ["FLOORS", "TARGETS", "Judged", "judge", "verdict"]

TARGETS = {
    ("tpot_s", 50): 0.02, ("e2e_s", 50): 0.02, ("ttft_s", 50): 0.10,
    ("tpot_s", 95): 0.15, ("e2e_s", 95): 0.15, ("ttft_s", 95): 0.15,
}  # fmt: skip
"""Largest allowed errors, as shares; a 99th percentile is printed without a target."""
FLOORS = 1.5
"""Factor on the spread of live runs up to which a larger error counts as noise."""
_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A figure's percentile at a load, live and predicted, seconds: medians over equal runs.

    Attributes:
      floor: largest / least of live runs, less one.
      target: largest allowed error; None: printed only.
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
        """Relative error: predicted over live, less one."""
        return self.simulated_s / self.live_s - 1.0

    @property
    def is_met(self) -> bool:
        """True if the error is within any target."""
        return self.target is None or abs(self.error) <= self.target

    @property
    def is_noise(self) -> bool:
        """True if the error is within `FLOORS` times the spread."""
        return abs(self.error) <= FLOORS * self.floor

    def as_text(self) -> str:
        """Return the figure, load and error as text."""
        target_text = "" if self.target is None else f" (target {100 * self.target:g})"
        return (
            f"{self.name.removesuffix('_s')} p{self.share} at {100 * self.load:g} % "
            f"{100 * self.error:+.1f} %{target_text}"
        )


def judge(load: float, runs: Sequence[Sequence[Comparison]]) -> list[Judged]:
    """Return each percentile of live runs, beside its prediction."""
    result = []
    for repeats in zip(*runs, strict=True):
        live = [one.live_s for one in repeats]
        name, share = repeats[0].name, repeats[0].share
        result.append(
            Judged(
                load=load, name=name, share=share, live_s=statistics.median(live),
                simulated_s=statistics.median(one.simulated_s for one in repeats),
                floor=max(live) / min(live) - 1.0, target=TARGETS.get((name, share)),
            )
        )  # fmt: skip
    return result


def verdict(judgements: Sequence[Judged]) -> str:
    """Return a line: whether the prediction holds, and where not."""
    missed = [one for one in judgements if not one.is_met]
    targets = sum(one.target is not None for one in judgements)
    if not missed:
        return f"HOLDS: all {targets} errors are within their targets"
    within = f"{targets - len(missed)} of {targets} errors are within their targets"
    noise = _listed([one for one in missed if one.is_noise])
    off = _listed([one for one in missed if not one.is_noise])
    if not off:
        return f"HOLDS TO {FLOORS:g} x THE FLOOR ONLY: {within}; above target: {noise}"
    rest = f"; above target only: {noise}" if noise else ""
    return f"DOES NOT HOLD: {within}; above target and {FLOORS:g} x the floor: {off}{rest}"


def _listed(missed: Sequence[Judged]) -> str:
    worst = sorted(missed, key=lambda one: -abs(one.error) / (one.target or 1.0))
    texts = [f"{one.as_text()}, floor {100 * one.floor:.1f} %" for one in worst[:_LISTED]]
    return "; ".join(texts) + (f" and {len(worst) - _LISTED} more" if len(worst) > _LISTED else "")
