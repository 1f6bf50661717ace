"""Section `grouped`: experts in host memory; only those with rows cross the link."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from experiments.gpu import Case, Context, Row, Scale, time_launches
from experiments.gpu.cases import HostRead
from experiments.gpu.kernels import bounds, operands
from pallas_kernels.grouped_gemm import grouped_gemm

# (model, experts, experts a token uses, K, N)
EXPERTS = (
    ("qwen3-30b-a3b", 128, 8, 2048, 1536),
    ("qwen3-30b-a3b", 128, 8, 768, 2048),
    ("mixtral-8x7b", 8, 2, 4096, 28672),
    ("mixtral-8x7b", 8, 2, 14336, 4096),
)
TOKENS = (1, 16, 64, 512, 4, 2048)
EITHER: HostRead = "either"
NONE: HostRead = ""


def cases(scale: Scale) -> list[Case]:
    """List the bounds, then the models' experts by tokens."""
    if scale == "tiny":
        spec = {"shape": "tiny", "experts": 4, "used": 2, "k": 128, "n": 128, "tokens": 4}
        found = [
            Case(spec={"what": what} | spec, host=host)
            for what, host in (("grouped", EITHER), ("resident", NONE))
        ]
        return [*bounds.cases(()), *found]
    found = [
        Case(
            spec={
                "what": what,
                "shape": model,
                "experts": experts,
                "used": used,
                "k": k,
                "n": n,
                "tokens": tokens,
            },
            limit_s=120.0,
            host=host,
        )
        for tokens in TOKENS
        for what, host in (("grouped", EITHER), ("resident", NONE))
        for model, experts, used, k, n in EXPERTS
    ]
    return [*bounds.cases((132,)), *(found[:8] if scale == "quick" else found)]


def group_sizes(spec: Mapping[str, Any], seed: int) -> np.ndarray:
    """Return the rows of each expert, int32 [experts], for tokens that choose uniformly."""
    draw = np.random.default_rng(seed)
    chosen = [
        draw.choice(spec["experts"], spec["used"], replace=False) for _ in range(spec["tokens"])
    ]
    counted = np.bincount(np.concatenate(chosen), minlength=spec["experts"])
    return counted.astype(np.int32)


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Measure one case; `weight_bytes` counts the experts with rows, in the mean of the draws."""
    if spec["what"] == "bound":
        return bounds.measure(spec, context)
    k, n, rows = spec["k"], spec["n"], spec["tokens"] * spec["used"]
    draws = [group_sizes(spec, context.seed + i) for i in range(8)]  # other experts each launch
    active = float(np.mean([(d > 0).sum() for d in draws]))
    x = operands.activations(rows, k, context)
    sizes = [jax.device_put(d) for d in draws]
    place = context.weights if spec["what"] == "grouped" else "device"
    w = operands.weights(k, n, spec["experts"], place, context.seed)
    run: Any
    if spec["what"] == "grouped":
        run = jax.jit(functools.partial(grouped_gemm, backend=context.backend))
    else:
        run = jax.jit(jax.lax.ragged_dot)
    operands.ready([x, w, *sizes])
    times = time_launches(
        lambda number: run(x, w, sizes[number % len(sizes)]),
        target_s=context.target_s,
        repetitions=context.repetitions,
    )
    amounts = {
        "active_experts": active,
        "m": rows,
        "weight_bytes": int(active * 2 * k * n),
        "activation_bytes": 2 * rows * (k + n),
        "flops": 2.0 * rows * k * n,
    }
    return [amounts | times.columns()]
