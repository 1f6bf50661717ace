"""Splits of a step's projections between the two dataflows: alpha and cluster of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from c2c.models import ModelSpec
from c2c.transformer import Hybrid
from pallas_kernels.arguments import Choice
from pallas_kernels.counting import round_up
from pallas_kernels.gemm import Gemm, choice, machine_for, present_machine

_MULTIPLE = 64  # K and N of host weights are padded to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Split of each projection, and the predicted time of all; None for a pure dataflow."""

    linear: Hybrid
    clusters: Mapping[str, int]
    alphas: Mapping[str, float]
    predicted_s: float | None = None


def split_of(name: str, spec: ModelSpec, rows: int, head_rows: int, *, backend: Choice) -> Split:
    """Return the split called "0" (AsymGEMM), "1" (SymGEMM) or "chosen".

    The pure dataflows are the paper's, without multicast. "chosen" is the split that is served:
    each call has the cluster and the alpha of its shortest predicted (if tuned, measured) time.

    Args:
      name: name of the split.
      spec: spec of the model.
      rows: tokens of the step.
      head_rows: tokens whose logits are computed.
      backend: backend of the kernels; "sm90" predicts with the rates of the present GPU.

    Raises:
      ValueError: `name` is another one.
    """
    gemms = projections(spec, rows, head_rows)
    if name in ("0", "1"):
        alphas = dict.fromkeys(gemms, float(name))
        linear = Hybrid(cluster=1, backend=backend).with_alpha(**alphas)
        return Split(linear=linear, clusters=dict.fromkeys(gemms, 1), alphas=alphas)
    if name != "chosen":
        raise ValueError(f"split={name!r}: expected 0, 1 or chosen")
    machine = present_machine() if backend == "sm90" else machine_for(sm_count=132)
    found = {kind: choice(gemm, machine) for kind, (gemm, _) in gemms.items()}
    return Split(
        linear=Hybrid(backend=backend),
        clusters={kind: one.config.cluster for kind, one in found.items()},
        alphas={kind: one.alpha for kind, one in found.items()},
        predicted_s=sum(gemms[kind][1] * one.time_s for kind, one in found.items()),
    )


def projections(spec: ModelSpec, rows: int, head_rows: int) -> dict[str, tuple[Gemm, int]]:
    """Return the GEMMs of one step of a dense model, and the number of runs of each."""
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
