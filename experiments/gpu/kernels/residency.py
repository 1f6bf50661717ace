"""Section `residency`: part of the weights in device memory, by share, and filling on the way.

`share` of the columns is read from device memory and the rest over the link, in one launch and by
one executable; `filling` reads all of them over the link and leaves the share behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.gpu import Case, Context, Row, Scale, time_launches
from experiments.gpu.kernels import bounds, operands
from experiments.gpu.kernels.launching import machine
from pallas_kernels.gemm import Gemm, Resident, best_alpha, choose, plans, predict
from pallas_kernels.hybrid_gemm import hybrid_gemm

SHAPES = (
    ("c2cserve-fig4", 4096, 16384),
    ("llama-3.1-8b", 4096, 28672),
    ("llama-3.1-8b", 14336, 4096),
)
ROWS = (8, 512, 2048)
SHARES = (0.5, 0.0, 1.0, 0.25, 0.75)
STRIP = 256  # shares are whole strips of the widest tiles


def cases(scale: Scale) -> list[Case]:
    """List the bounds, then shares by shape and rows, each beside filling."""
    if scale == "tiny":
        size = {"shape": "tiny", "k": 128, "n": 256, "m": 8, "share": 1.0}
        return [*bounds.cases(()), *(Case(spec={"what": w} | size) for w in ("share", "filling"))]
    specs: list[dict[str, Any]] = []
    for share in SHARES:
        for shape, k, n in SHAPES:
            size = {"shape": shape, "k": k, "n": n}
            specs += [{"what": "share", **size, "m": m, "share": share} for m in ROWS]
            if share:
                specs.append({"what": "filling", **size, "m": ROWS[0], "share": share})
    found = [Case(spec=spec, limit_s=120.0) for spec in specs]
    return [*bounds.cases((132,)), *(found[:8] if scale == "quick" else found)]


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Measure one case; `predicted_s` is the model's, `link_bytes` what crosses the link."""
    if spec["what"] == "bound":
        return bounds.measure(spec, context)
    m, k, n = spec["m"], spec["k"], spec["n"]
    count = operands.copies(2 * k * n, context)
    columns = int(spec["share"] * n) // STRIP * STRIP
    w = operands.weights(k, n, count, "host", context.seed, w_layout="nk")
    x = operands.activations(m, k, context)
    filling = spec["what"] == "filling"
    # as many columns for each copy: no launch finds in a cache what an earlier one has read
    cache: Any = jnp.zeros((max(columns, 64) * count, k), jnp.bfloat16)
    gemm = Gemm(m=-(-m // 8) * 8, k=k, n=n, w_layout="nk", layers=count, resident=cache.shape[0])
    config = choose(gemm, machine(context))
    alpha = best_alpha(gemm, config, machine(context))
    plan = plans(gemm, config, alpha, resident_strips=0 if filling else columns // config.tn)
    found = predict(gemm, config, plan, machine(context))

    @jax.jit
    def run(x: jax.Array, w: jax.Array, cache: Any, layer: jax.Array) -> jax.Array:
        begin = layer * max(columns, 64)
        given = Resident(
            cache=cache,
            columns=jnp.where(filling, 0, columns),
            begin=begin,
            fill=columns if filling else None,
        )
        return hybrid_gemm(
            x, w, alpha, layer=layer, w_layout="nk", resident=given, backend=context.backend
        )

    layers = [jnp.int32(layer) for layer in range(count)]
    data = operands.operand(w, context)
    operands.ready([x, data, cache, *layers])
    if filling:
        cache = jax.new_ref(cache)
    times = time_launches(
        lambda number: run(x, data, cache, layers[number % count]),
        target_s=context.target_s,
        repetitions=context.repetitions,
    )
    amounts: Row = {
        "columns": columns,
        "weight_bytes": 2 * k * n,
        "link_bytes": int(found.traffic.w_bytes),
        "activation_bytes": 2 * m * (k + n),
        "flops": 2.0 * m * k * n,
        "predicted_s": float(found.time_s),
    }
    return [amounts | times.columns()]
