"""Configurations of a GEMM worth measuring, by predicted time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pallas_kernels.gemm import Config, Gemm, Machine
from pallas_kernels.gemm import heuristics as choices
from pallas_kernels.gemm.prediction import plans, predict, reachable

ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)

_PER_CONFIG = 2  # alphas of one configuration, so that a short list holds several


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Configuration at one alpha, with its predicted time."""

    config: Config
    alpha: float
    predicted_s: float
    bound: str


def candidates(gemm: Gemm, machine: Machine, top: int) -> tuple[Candidate, ...]:
    """Return the `top` candidates by predicted time, fastest first.

    The prediction is not measured, so it may not drop a whole dataflow: from `top` = 3 up, the best
    SymGEMM, the best AsymGEMM and the best mixture are always among the candidates. From 4 up, so
    is the best that adds partial sums, without its staggered first pass. Otherwise a configuration
    has at most two alphas.

    Args:
      gemm: sizes and types.
      machine: rates.
      top: number of candidates, at least 1.
    """
    ranked = []
    for _, config in choices.candidates(gemm, machine):
        ranked += _expected(gemm, config, reachable(ALPHAS, config, gemm), machine)
    ranked.sort(key=lambda entry: entry[:3])
    order = [entry[3] for entry in ranked]

    first: dict[str, Candidate] = {}
    for one in order:
        first.setdefault(_kind(one.alpha), one)
    keep = sorted(first.values(), key=order.index)[:top]
    for one in order:
        used = sum(other.config == one.config for other in keep)
        if len(keep) < top and one not in keep and used < _PER_CONFIG:
            keep.append(one)
    adding = next((one for one in sorted(keep, key=order.index) if one.alpha < 1), None)
    if adding and adding.config.stagger and gemm.k > adding.config.kc and len(keep) == top > 3:
        last = max((one for one in keep if one not in first.values()), key=order.index)
        keep.remove(last)
        together = replace(adding.config, stagger=False)
        keep.append(_expected(gemm, together, np.array([adding.alpha]), machine)[0][3])
    return tuple(sorted(keep, key=lambda one: one.predicted_s))


def _expected(
    gemm: Gemm, config: Config, alphas: np.ndarray, machine: Machine
) -> list[tuple[float, float, int, Candidate]]:
    """Return (time, time of all resources, cluster, candidate) for each alpha."""
    expected = predict(gemm, config, plans(gemm, config, alphas), machine)
    found = []
    for i, alpha in enumerate(alphas):
        one = Candidate(
            config=config,
            alpha=float(alpha),
            predicted_s=float(expected.time_s[i]),
            bound=str(expected.bound[i]),
        )
        found.append((one.predicted_s, float(expected.sum_s[i]), config.cluster, one))
    return found


def _kind(alpha: float) -> str:
    return {0.0: "asym", 1.0: "sym"}.get(alpha, "mixed")
