"""How a step's projections are split between the two dataflows: alpha of each, and the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from c2c.models import ModelSpec
from pallas_kernels.counting import round_up
from pallas_kernels.hybrid_gemm import (
    CLUSTERS,
    Gemm,
    best_alpha,
    choose,
    machine_for,
    plan_launch,
    predict,
    present_machine,
)

_MULTIPLE = 64  # what K and N of host weights are padded to


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Settings of `Hybrid`, and the time that the model of `hybrid_gemm` gives for its GEMMs."""

    cluster: int
    alpha: Mapping[str, float] = field(default_factory=dict)
    predicted_s: float | None = None


def split_of(name: str, spec: ModelSpec, rows: int, head_rows: int, *, backend: str) -> Split:
    """Return the split called "0" (AsymGEMM), "1" (SymGEMM) or "chosen".

    The pure dataflows are the paper's, without multicast. "chosen" has the cluster, and for each
    projection the alpha, of the shortest predicted (or, where it was tuned, measured) time.

    Args:
      name: of the split.
      spec: the model.
      rows: tokens of the step.
      head_rows: tokens whose logits are computed.
      backend: "sm90" on a GPU, whose rates then count.
    """
    gemms = projections(spec, rows, head_rows)
    if name in ("0", "1"):
        return Split(cluster=1, alpha=dict.fromkeys(gemms, float(name)))
    if name != "chosen":
        raise ValueError(f"split={name!r}: expected 0, 1 or chosen")
    machine = present_machine() if backend == "sm90" else machine_for(sm_count=132)
    found = []
    for cluster in CLUSTERS:
        total, alpha = 0.0, {}
        for kind, (gemm, times) in gemms.items():
            config = choose(gemm, machine, cluster=cluster)
            alpha[kind] = float(best_alpha(gemm, config, machine))
            plan = plan_launch(gemm, config, alpha=alpha[kind], layer=_first(gemm))
            total += times * float(predict(gemm, config, plan, machine).time_s)
        found.append(Split(cluster=cluster, alpha=alpha, predicted_s=total))
    return min(found, key=lambda split: split.predicted_s or 0.0)


def projections(spec: ModelSpec, rows: int, head_rows: int) -> dict[str, tuple[Gemm, int]]:
    """Return the GEMMs of one step of a dense model, and how often each runs."""
    h, q = spec.hidden, spec.heads * spec.head_dim
    kv = spec.kv_heads * spec.head_dim
    sizes = {
        "qkv": (h, q + 2 * kv),
        "o": (q, h),
        "gate_up": (h, 2 * spec.intermediate),
        "down": (spec.intermediate, h),
    }
    found = {
        kind: (_gemm(rows, k, n, layers=spec.layers), spec.layers) for kind, (k, n) in sizes.items()
    }
    return found | {"head": (_gemm(head_rows, h, spec.vocab, out_dtype="float32"), 1)}


def _gemm(m: int, k: int, n: int, **more: Any) -> Gemm:
    return Gemm(
        m=round_up(m, 8),
        k=round_up(k, _MULTIPLE),
        n=round_up(n, _MULTIPLE),
        w_layout="nk",
        **more,
    )


def _first(gemm: Gemm) -> int | None:
    return None if gemm.layers is None else 0
