"""Robust placement: one plan for several mixes of steps, with its loss at each mix.

A plan is made for one number of decode steps a prefill, but answers become longer or shorter.
Candidates are a plan for each mix and one for all mixes together. The smallest worst loss wins.

Source: ours. It is the best candidate, not the best of all placements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from c2c.errors import SettingError
from c2c.systems.tessera.plan import Policy, cost, stages_of
from c2c.systems.tessera.planner import plan
from c2c.systems.tessera.work import Gpus, Work, joined

__all__ = ["Robust", "robust_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Robust:
    """A placement and its losses.

    Attributes:
      gpu_of: each kernel's GPU.
      losses: [mix], share by which the mix takes longer than under its best candidate.
      own_losses: [plan][mix], the same losses of each mix's own plan.
    """

    gpu_of: tuple[int, ...]
    losses: tuple[float, ...]
    own_losses: tuple[tuple[float, ...], ...]

    @property
    def worst(self) -> float:
        """The largest loss."""
        return max(self.losses)


def robust_plan(
    steps: Sequence[Work],
    mixes: Sequence[Sequence[float]],
    gpus: Gpus,
    *,
    policy: Policy = "throughput",
    first: Sequence[int] | None = None,
    gap: float = 0.01,
) -> Robust:
    """Return one placement for all mixes.

    Args:
      steps: kinds of steps, such as prefill and decode.
      mixes: [mix][step], number of times that a request runs each step.
      gpus: GPUs and links.
      policy: objective to minimise.
      first: see `plan`.
      gap: see `plan`.

    Raises:
      SettingError: no mix, or a mix without a number for each step.
    """
    if not mixes or any(len(mix) != len(steps) for mix in mixes):
        raise SettingError("mixes", list(mixes), f"at least one list of {len(steps)} numbers")
    works = [joined(list(zip(steps, mix, strict=True))) for mix in mixes]
    # relative to the time of each mix's own plan, so that long answers do not weigh more
    own = [plan(work, gpus, policy, first=first, gap=gap) for work in works]
    counts = [
        sum(mix[k] / made.objective_s for mix, made in zip(mixes, own, strict=True))
        for k in range(len(steps))
    ]
    together = joined(list(zip(steps, counts, strict=True)))
    candidates = [
        *(made.gpu_of for made in own), plan(together, gpus, policy, first=first, gap=gap).gpu_of
    ]  # fmt: skip
    seconds = [
        [cost(policy, stages_of(work, gpus, gpu_of)[0]) for work in works] for gpu_of in candidates
    ]
    best = [min(row[k] for row in seconds) for k in range(len(works))]
    losses = [tuple(s / least - 1 for s, least in zip(row, best, strict=True)) for row in seconds]
    chosen = min(range(len(candidates)), key=lambda n: max(losses[n]))
    return Robust(
        gpu_of=candidates[chosen], losses=losses[chosen], own_losses=tuple(losses[: len(own)])
    )
