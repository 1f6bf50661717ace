"""Compiles what a step of a model runs for an H200, where there is none; prints JSON.

python -m tests.transformer.compile_ahead '{"rows": 8, "chunk": 1, "experts": 0, ...}'
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from pallas_kernels import ahead_of_time

PAGES, PAGE_TOKENS, WIDTH = 64, 64, 16


# A process of its own: the compiler is set up before jax starts.
def main(case: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ahead_of_time.prepare(Path(folder))
        print(json.dumps(report(Path(folder), **case)))


def report(
    dump: Path, *, rows: int, chunk: int, experts: int = 0, tied: bool = False,
    linear: str = "hybrid", quantize: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    import jax
    import jax.numpy as jnp
    import numpy as np

    from c2c.models import ModelSpec
    from c2c.transformer import Cache, Executables, Hybrid
    from c2c.transformer.layers.forward import run
    from c2c.transformer.layers.linear import linear_by_name
    from c2c.transformer.weights.checkpoint import abstract_params
    from c2c.transformer.weights.formats import quantization_by_name

    arguments = importlib.import_module("pallas_kernels.arguments")
    arguments.missing = lambda *_: ""
    arguments.require = lambda *_: None
    compiler = ahead_of_time.Compiler(ahead_of_time.TARGETS["h200"], dump)
    reports = []

    class Compiled(Executables):
        """Compiles for the target, and keeps what the compiler says."""

        def _made(self, program: Any, device: Any) -> Any:
            executable, code = compiler.compile(program)
            reports.append((executable.as_text(), code))
            return executable

    moe = {"experts": experts, "experts_per_token": 2, "moe_intermediate": 2048}
    spec = ModelSpec(
        name="m", family="mixtral" if experts else "llama", layers=2, hidden=2048, heads=16,
        kv_heads=4, head_dim=128, intermediate=4096, vocab=32000, tie_embeddings=tied,
        max_position=8192, **(moe if experts else {}),
    )  # fmt: skip
    strategy: Any = linear_by_name(linear)
    if isinstance(strategy, Hybrid):
        strategy = strategy.with_alpha(qkv=0.5)
    params = abstract_params(
        spec,
        dtype="bfloat16",
        placement=strategy.placement,
        quantization=quantization_by_name(quantize),
    )
    # jax's stand-ins for arrays know no memory here: what is a HostArray says it.
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")

    def placed(path: Any, leaf: Any) -> Any:
        inside = any(getattr(step, "name", "") in ("embed", "projections") for step in path)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=host if inside else None)

    params = jax.tree_util.tree_map_with_path(placed, params)
    pool = jax.ShapeDtypeStruct(
        (spec.layers * PAGES, PAGE_TOKENS, spec.kv_heads, spec.head_dim), jnp.bfloat16
    )
    cache = Cache(k=pool, v=pool, tables=jax.ShapeDtypeStruct((rows, WIDTH), jnp.int32))
    tokens = np.zeros((rows, chunk), np.int32)
    run(params, tokens, tokens, cache, spec, linear=strategy, executables=Compiled(), ahead=True)
    weights = jax.tree.leaves((params.embed, dict(params.projections)))
    pages = f"= bf16[{','.join(map(str, pool.shape))}]"
    return {
        "stages": len(reports),
        "kernels": sum(code.kernels for _, code in reports),
        "spilled_bytes": sum(code.spilled_bytes for _, code in reports),
        "wgmma_serialised": any(code.wgmma_serialised for _, code in reports),
        "host_copies": [line for _, code in reports for line in code.host_copies],
        "host_argument_bytes": sum(code.host_argument_bytes for _, code in reports),
        "weight_bytes": sum(leaf.size * leaf.dtype.itemsize for leaf in weights),
        "cache_copies": [
            line.strip()
            for text, _ in reports
            for line in text.splitlines()
            if pages in line and " copy(" in line
        ],
    }


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
