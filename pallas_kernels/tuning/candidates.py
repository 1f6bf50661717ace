"""The tuner's candidates: shapes of models, and for each the configurations worth a measurement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pallas_kernels.counting import round_up
from pallas_kernels.gemm import (
    MODEL_PROJECTIONS,
    ROW_MULTIPLE,
    ROWS,
    Config,
    Gemm,
    Machine,
    WLayout,
)
from pallas_kernels.gemm import heuristics as choices
from pallas_kernels.gemm.prediction import plans, predict, reachable

ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)

_PER_CONFIG = 2  # alphas of one configuration, so that a short list holds several


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A configuration at one alpha, with the time the model expects."""

    config: Config
    alpha: float
    predicted_s: float
    bound: str


def problems(
    models: Iterable[str] | None = None,
    rows: Sequence[int] = ROWS,
    *,
    shapes: Iterable[tuple[int, int]] = (),
    dtype: str = "bfloat16",
    out_dtype: str | None = None,
    w_layout: WLayout = "kn",
) -> tuple[Gemm, ...]:
    """Return the GEMMs of models' projections, each once, those of equal weights together.

    Args:
      models: names in `MODEL_PROJECTIONS`; default all, or none if `shapes` are given.
      rows: numbers of tokens; rounded up to what the kernel works on.
      shapes: more (K, N).
      dtype: of x and w.
      out_dtype: of the output; default `dtype`.
      w_layout: of w.

    Raises:
      ValueError: a model is unknown, or a size or type is none that the kernel takes.
    """
    pairs = list(shapes)
    if models is None:
        models = () if pairs else MODEL_PROJECTIONS
    for model in models:
        if model not in MODEL_PROJECTIONS:
            known = ", ".join(MODEL_PROJECTIONS)
            raise ValueError(f"model={model!r}: expected one of {known}")
        pairs += MODEL_PROJECTIONS[model]
    heights = dict.fromkeys(round_up(m, ROW_MULTIPLE) for m in rows)
    return tuple(
        Gemm(m=m, k=k, n=n, dtype=dtype, out_dtype=out_dtype or dtype, w_layout=w_layout)
        for k, n in dict.fromkeys(pairs)
        for m in heights
    )


def candidates(
    gemm: Gemm,
    machine: Machine,
    *,
    top: int = 8,
    clusters: Sequence[int] | None = None,
    family: Sequence[Config] | None = None,
) -> tuple[Candidate, ...]:
    """Return the `top` candidates by predicted time, fastest first.

    The model is not measured, so it does not get to drop a whole dataflow: the best SymGEMM, the
    best AsymGEMM and the best mixture are always among them (from `top` = 3 up), and the best
    that adds partial sums also without its staggered first pass. Otherwise a configuration has at
    most two alphas.

    Args:
      gemm: sizes and types.
      machine: rates.
      top: how many.
      clusters: only these.
      family: configurations instead of `hybrid_gemm`'s.

    Raises:
      ValueError: `top` is below 1, or nothing fits.
    """
    if top < 1:
        raise ValueError(f"top={top}: expected a number above 0")
    if family is None:
        family = [config for _, config in choices.candidates(gemm, machine)]
    family = [one for one in family if clusters is None or one.cluster in clusters]
    ranked = []
    for config in family:
        ranked += _expected(gemm, config, reachable(ALPHAS, config, gemm), machine)
    if not ranked:
        raise ValueError(f"clusters={clusters}: expected one that {machine.sm_count} SMs hold")
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
