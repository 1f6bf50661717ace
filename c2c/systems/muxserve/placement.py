"""Greedy placement of models on GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Served", "placed", "share_of"]

_ENOUGH: Final = 1.0 - 1e-9  # of a rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model with load and times, for the estimate.

    Attributes:
      request_bytes: of a request's KV cache.
      prompt_s: of a prompt.
      decode_s: of a decode step of 1, 2, ... requests, by share of the SMs.
    """

    name: str
    rate_rps: float
    output_tokens: int
    weight_bytes: float
    request_bytes: float
    prompt_s: float
    decode_s: Mapping[float, npt.NDArray[np.float64]]

    @property
    def work(self) -> float:
        """Computation in bytes of weights a second."""
        return self.rate_rps * self.weight_bytes

    def most_rps(self, share: float, room_bytes: float, prompts_s: float) -> float:
        """Return its largest rate, B / (prompts + tokens x step of B)."""
        steps_s = self.decode_s[share]
        n = max(0, min(len(steps_s), int(room_bytes // self.request_bytes)))
        rates = np.arange(1, n + 1) / (prompts_s + self.output_tokens * steps_s[:n])
        return float(rates.max(initial=0.0))


def share_of(model: Served, room_bytes: float) -> float:
    """Return the smallest share of SMs for a model's rate, else the best."""
    best, most = 1.0, -1.0
    for share in sorted(model.decode_s):
        rate = model.most_rps(share, room_bytes, model.prompt_s)
        if rate >= _ENOUGH * model.rate_rps:
            return share
        if rate > most:
            best, most = share, rate
    return best


def _served_rps(
    models: Sequence[Served], shares: Mapping[str, float], room: Callable[[Sequence[Served]], float]
) -> float:
    # Requests a second that a GPU serves; KV caches have its room by rate.
    budget = room(models)
    if budget <= 0.0:
        return -np.inf
    demand = sum(m.rate_rps * m.request_bytes for m in models)
    prompts_s = sum(m.prompt_s for m in models)
    return sum(
        min(m.rate_rps, m.most_rps(shares[m.name], part, prompts_s))
        for m in models
        for part in (budget * m.rate_rps * m.request_bytes / demand,)
    )


def placed(
    models: Sequence[Served], gpus: int, room: Callable[[Sequence[Served]], float]
) -> tuple[list[list[Served]], dict[str, float]]:
    """Return each GPU's models, and each model's share of the SMs for decodes.

    Models without room are left out.

    Args:
      room: KV bytes beside some models; 0 or less: no room.

    Source: MuxServe (ICML 2024), Algorithms 1 and 2; hao-ai-lab/MuxServe 2249cfa,
    `muxsched/placement.py`. Ours: one GPU a model; of equal gains the GPU with least work.
    """
    shares = {m.name: share_of(m, room([m])) for m in models}
    groups: list[list[Served]] = [[] for _ in range(gpus)]
    served = [0.0] * gpus
    for model in sorted(models, key=lambda m: -m.work):
        gains = [
            _served_rps([*here, model], shares, room) - before
            for here, before in zip(groups, served, strict=True)
        ]
        best = max(range(gpus), key=lambda g: (gains[g], -sum(m.work for m in groups[g]), -g))
        if gains[best] > -np.inf:
            groups[best].append(model)
            served[best] += gains[best]
    return groups, shares
