"""Compiles a whole forward pass with the hybrid strategy for an H200; prints a JSON report.

A process of its own: the compiler is set up before jax starts, and the kernels are told that they
can run here.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from pallas_kernels import ahead_of_time


def main(rows: int, chunk: int, experts: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ahead_of_time.prepare(Path(folder))
        print(json.dumps(report(Path(folder), rows, chunk, experts)))


def report(dump: Path, rows: int, chunk: int, experts: int) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    from c2c.models import ModelSpec
    from c2c.transformer import Cache, Hybrid, forward
    from c2c.transformer.checkpoint import abstract_params

    arguments = importlib.import_module("pallas_kernels.arguments")
    compiler_module = importlib.import_module("pallas_kernels.ahead_of_time.compiler")
    arguments.missing = lambda *_: ""
    arguments.require = lambda *_: None
    compiler = ahead_of_time.Compiler(ahead_of_time.TARGETS["h200"], dump)
    moe = {"experts": experts, "experts_per_token": 2, "moe_intermediate": 2048}
    spec = ModelSpec(
        name="m",
        family="mixtral" if experts else "llama",
        layers=2,
        hidden=2048,
        heads=16,
        kv_heads=4,
        head_dim=128,
        intermediate=4096,
        vocab=32000,
        tie_embeddings=False,
        max_position=8192,
        **(moe if experts else {}),
    )

    def array(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=compiler._sharding)

    params = abstract_params(spec, dtype="bfloat16", placement=Hybrid().placement, make=array)
    pool = array((2 * 64, 64, spec.kv_heads, spec.head_dim), jnp.bfloat16)
    cache = Cache(k=pool, v=pool, tables=array((rows, 16), jnp.int32))
    tokens = array((rows, chunk), jnp.int32)
    alpha = {name: array((), jnp.float32) for name in ("qkv", "o", "gate_up", "down", "head")}

    def step(params: Any, tokens: Any, positions: Any, cache: Any, alpha: Any) -> Any:
        return forward(params, tokens, positions, cache, spec, linear=Hybrid(alpha=alpha))

    inputs = (params, tokens, tokens, cache, alpha)
    lowered = jax.jit(step, donate_argnums=3).trace(*inputs).lower(lowering_platforms=("cuda",))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(inputs)]
    kept = sorted(lowered._lowering.compile_args["kept_var_idx"])
    compiler_module._mark_host(lowered, ["projections" in paths[i] for i in kept])
    compiled = lowered.compile()
    code = compiler._report(compiled)
    weights = sum(
        leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(dict(params.projections))
    )
    pages = f"= bf16[{','.join(map(str, pool.shape))}]"
    return {
        "kernels": code.kernels,
        "spilled_bytes": code.spilled_bytes,
        "host_copies": code.host_copies,
        "host_argument_bytes": code.host_argument_bytes,
        "weight_bytes": weights,
        "cache_copies": [
            line.strip()
            for line in compiled.as_text().splitlines()
            if pages in line and " copy(" in line
        ],
    }


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
