"""Compilation of a step for an absent GPU, with XLA's dumps.

PYTHONPATH=.venv-aot python -m c2c.systems.program.xla.compile OUT '{"layers": 2}'
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from c2c.errors import DataError, SettingError, unknown_name
from c2c.models import ModelSpec
from c2c.ranges import Count, Index, check_fields
from c2c.systems.program.xla.distil import distil
from c2c.systems.program.xla.targets import TARGETS, XlaTarget

__all__ = ["StepShape", "compile_step", "main"]

PAGE_TOKENS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """Shape of a Llama's or Mixtral's step.

    Attributes:
      rows: sequences.
      chunk: tokens a sequence; 1: a decode step.
      context: tokens of KV a sequence, a multiple of 64.
      layers, hidden, heads, kv_heads, head_dim, intermediate, vocab: sizes.
      experts: experts, two a token; 0: dense.
    """

    target: str = "a100_80"
    rows: Count = 8
    chunk: Count = 1
    context: Count = 1024
    layers: Count = 2
    hidden: Count = 4096
    heads: Count = 32
    kv_heads: Count = 8
    head_dim: Count = 128
    intermediate: Count = 14336
    vocab: Count = 32000
    experts: Index = 0

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise unknown_name("target", self.target, TARGETS)
        check_fields(self)
        if self.context % PAGE_TOKENS:
            raise SettingError("context", self.context, f"a multiple of {PAGE_TOKENS}")

    def model(self) -> ModelSpec:
        """Return the model's spec."""
        is_sparse = self.experts > 0
        return ModelSpec(
            name="step",
            family="mixtral" if is_sparse else "llama",
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            intermediate=self.intermediate,
            vocab=self.vocab,
            tie_embeddings=False,
            max_position=max(8192, self.context),
            experts=self.experts,
            experts_per_token=2 if is_sparse else 0,
            moe_intermediate=self.intermediate if is_sparse else 0,
        )


def flags(folder: Path) -> str:
    """Return XLA's flags that dump all parts into a folder."""
    return (
        f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_pass_re=NONE "
        "--xla_dump_large_constants --xla_dump_emitter_re=ptx"
    )


# It needs a process of its own, as XLA reads its flags on jax's first use.
def compile_step(shape: StepShape, folder: Path) -> None:
    """Compile a step; write distilled dumps to `folder`, see `distil`."""
    if folder.is_dir() and any(folder.iterdir()):
        raise DataError(str(folder), "is not empty")
    with tempfile.TemporaryDirectory() as raw:
        os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
        os.environ["XLA_FLAGS"] = flags(Path(raw))
        _compile(shape)
        distil(Path(raw), folder)


def _compile(shape: StepShape) -> None:
    jax: Any = import_module("jax")
    jax.config.update("jax_platforms", "cpu")
    transformer: Any = import_module("c2c.transformer")
    abstract_params = import_module("c2c.transformer.weights.checkpoint").abstract_params
    linear = transformer.Reference()
    sharding = _sharding(jax, TARGETS[shape.target])
    spec = shape.model()

    def array(size: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(size, dtype, sharding=sharding)

    params = abstract_params(spec, dtype="bfloat16", placement=linear.placement, make=array)
    pages = shape.rows * shape.context // PAGE_TOKENS
    int32, bf16 = jax.numpy.int32, jax.numpy.bfloat16
    pool = array((spec.layers * pages, PAGE_TOKENS, spec.kv_heads, spec.head_dim), bf16)
    tables = array((shape.rows, shape.context // PAGE_TOKENS), int32)
    tokens = array((shape.rows, shape.chunk), int32)

    def step(params: Any, tokens: Any, positions: Any, k: Any, v: Any, tables: Any) -> Any:
        logits, cache = transformer.forward(
            params, tokens, positions, transformer.Cache(k=k, v=v, tables=tables), spec,
            linear=linear, backend="reference",
        )  # fmt: skip
        return logits, cache.k, cache.v

    traced = jax.jit(step, donate_argnums=(3, 4), keep_unused=True).trace(
        params, tokens, tokens, pool, pool, tables
    )
    traced.lower(lowering_platforms=("cuda",)).compile()


def _sharding(jax: Any, target: XlaTarget) -> Any:
    topologies: Any = import_module("jax.experimental.topologies")
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=target.description(), topology="1x1x1"
    )
    mesh = topologies.make_mesh(topo=topology, mesh_shape=(1,), axis_names=("d",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def main(arguments: list[str]) -> int:
    """Compile a step; arguments: a folder and a shape as JSON."""
    folder, shape = Path(arguments[0]), json.loads(arguments[1] if len(arguments) > 1 else "{}")
    if not isinstance(shape, Mapping):
        raise SettingError("shape", shape, "a JSON object")
    compile_step(StepShape(**shape), folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
