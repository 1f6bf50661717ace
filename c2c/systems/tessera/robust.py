"""One placement for a mix of steps that drifts: how much it loses where the mix is another.

A plan is made for so many decode steps a prefill; answers become longer or shorter. Of the plans
for each mix, and for all of them together, the one is taken that loses least where it loses most.

Source: ours. Not the best of all placements in that sense: the best of these.
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
    """A placement, and what it loses.

    Attributes:
      gpu_of: each kernel's GPU.
      losses: of each mix, by how much its step takes longer than under the mix's own plan.
      own_losses: [plan][mix], the same for the plan of each mix.
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
      steps: prefill and decode, say.
      mixes: how often a request takes each step, one list a mix.
      gpus: where kernels may run.
      policy: what is made small.
      first: see `plan`.
      gap: see `plan`.

    Raises:
      SettingError: no mix, or one of another length than there are steps.
    """
    if not mixes or any(len(mix) != len(steps) for mix in mixes):
        raise SettingError("mixes", list(mixes), f"lists of {len(steps)} numbers, at least one")
    works = [joined(list(zip(steps, mix, strict=True))) for mix in mixes]
    # shares of the time that a mix's own plan takes, so that long answers do not weigh more
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
