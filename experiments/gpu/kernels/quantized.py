"""Section `quantized`: weights of fewer bits in host memory, against bf16 over the same link."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from experiments.gpu import Case, Context, Row, Scale, time_launches
from experiments.gpu.kernels import bounds, launching, operands
from experiments.gpu.kernels.rivals import resident
from pallas_kernels.host_memory import to_host
from pallas_kernels.quantized_gemm import Kind, quantize, quantized_gemm

KINDS = (("int8", None), ("int4", 128), ("float8_e4m3fn", None), ("int8", 128), ("int4", None))
SHAPES = (
    ("c2cserve-fig4", 4096, 16384),
    ("llama-3.1-8b", 4096, 6144),
    ("llama-3.1-8b", 14336, 4096),
)
ROWS = (16, 1, 64, 8, 128, 512, 2048)
COPIES = 2


def cases(scale: Scale) -> list[Case]:
    """List the bounds, then kinds by shape and rows, each beside bf16."""
    if scale == "tiny":
        specs = [{"what": "int8", "group": 0, "shape": "tiny", "k": 256, "n": 128, "m": 8}]
        specs += [spec | {"what": name} for spec in specs for name in ("bf16", "resident")]
        return [*bounds.cases(()), *(Case(spec=s) for s in specs)]
    specs = []
    for shape, k, n in SHAPES:
        size = {"shape": shape, "k": k, "n": n}
        # Rows vary fastest: quantising the weights takes longer than measuring.
        specs += [
            {"what": kind, "group": group or 0, **size, "m": m}
            for kind, group in KINDS
            for m in ROWS
        ]
        specs += [
            {"what": what, "group": 0, **size, "m": m}
            for what in ("bf16", "resident")
            for m in ROWS
        ]
    found = [Case(spec=spec, limit_s=180.0) for spec in specs]
    return [*bounds.cases((132,)), *(found[:10] if scale == "quick" else found)]


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Measure one case; `weight_bytes` counts scales too."""
    if spec["what"] == "bound":
        return bounds.measure(spec, context)
    m, k, n = spec["m"], spec["k"], spec["n"]
    amounts: Row = {"activation_bytes": 2 * m * (k + n), "flops": 2.0 * m * k * n}
    if spec["what"] == "resident":
        launch, amounts["weight_bytes"] = resident(m, k, n, context), 2 * k * n
    elif spec["what"] == "bf16":
        w = operands.weights(k, n, operands.copies(2 * k * n, context), "host", context.seed)
        x = operands.activations(m, k, context)
        launch, amounts["weight_bytes"] = launching.hybrid(x, w, context, alpha=1.0), 2 * k * n
    else:
        layers = packed(spec["what"], spec["group"] or None, k, n, context.seed)
        x = operands.activations(m, k, context)
        run = jax.jit(functools.partial(quantized_gemm, backend=context.backend))
        amounts["weight_bytes"] = sum(leaf.nbytes for leaf in jax.tree.leaves(layers[0]))
        operands.ready([x, *jax.tree.leaves(layers)])

        def launch(number: int) -> Any:
            return run(x, layers[number % COPIES])

    times = time_launches(launch, target_s=context.target_s, repetitions=context.repetitions)
    return [amounts | times.columns()]


@functools.lru_cache(maxsize=1)
def packed(kind: Kind, group: int | None, k: int, n: int, seed: int) -> tuple[Any, ...]:
    """Return quantised weights in host memory; the last ones asked for are kept."""
    draw = np.random.default_rng(seed)
    return tuple(
        to_host(
            quantize(
                (draw.standard_normal((k, n), np.float32) * k**-0.5),
                kind,
                group=group,
                w_layout="kn",
            )
        )
        for _ in range(COPIES)
    )
