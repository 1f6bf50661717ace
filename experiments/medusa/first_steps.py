"""Seconds of each of the first decode steps of a process.

    python -m experiments.medusa.first_steps '{"layers": 2}' 12

XLA runs a step's launches as a command buffer, its own CUDA graph. The first run has none, the
second builds it, later ones patch the changed addresses. A flag of XLA selects the patched
addresses, so that each mode needs a process of its own (`seconds_of`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from c2c.errors import DataError
from c2c.systems.program.xla import StepShape
from experiments.children import gpu_environment, run

__all__ = ["MODES", "main", "seconds_of"]

# Values of --xla_gpu_command_buffer_update_mode (before jax 0.11 a switch, ..._va_remapping): patch
# all addresses at every run; or remap temporaries, or all memory that profiling found to move, to
# the addresses of the earlier run.
MODES: Final = ("ALWAYS_UPDATE", "SKIP_TEMP", "SKIP_PROFILED")
PAGE_TOKENS: Final = 64
LIMIT_S: Final = 120.0


def seconds_of(step: Mapping[str, Any], mode: str, count: int) -> tuple[float, ...]:
    """Return the seconds of a process's first steps.

    Args:
      step: fields of `StepShape`.
      mode: one of `MODES`.
      count: number of steps.

    Raises:
      DataError: the process fails, or needs over two minutes.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_command_buffer_update_mode={mode}"
    line = [sys.executable, "-m", "experiments.medusa.first_steps", json.dumps(dict(step))]
    env = gpu_environment() | {"XLA_FLAGS": flags.strip()}
    done = run([*line, str(count)], limit_s=LIMIT_S, env=env)
    if "XLA_FLAGS" in done.errors or "usage:" in done.errors:
        raise DataError(f"first steps, {mode}", "XLA has no such flag or value")
    if done.code:
        raise DataError(f"first steps, {mode}", done.why)
    if done.code is None:
        raise DataError(f"first steps, {mode}", f"not done within {LIMIT_S:.0f} s")
    return tuple(json.loads(done.out.splitlines()[-1]))


def _seconds(shape: StepShape, count: int) -> list[float]:
    jax: Any = import_module("jax")
    transformer: Any = import_module("c2c.transformer")
    numpy: Any = import_module("numpy")
    cache_of = import_module("c2c.transformer.cache").new_cache
    spec, linear = shape.model(), transformer.Reference()
    rng = numpy.random.default_rng(0)
    params = transformer.random_params(spec, rng, dtype="bfloat16", placement=linear.placement)
    each = shape.context // PAGE_TOKENS
    tables = numpy.arange(shape.rows * each, dtype=numpy.int32).reshape(shape.rows, each)
    cache = cache_of(
        spec, pages=tables.size, page_tokens=PAGE_TOKENS, dtype=jax.numpy.bfloat16, tables=tables
    )

    def step(params: Any, tokens: Any, positions: Any, k: Any, v: Any, tables: Any) -> Any:
        logits, left = transformer.forward(
            params, tokens, positions, transformer.Cache(k=k, v=v, tables=tables), spec,
            linear=linear, backend="reference",
        )  # fmt: skip
        return jax.numpy.argmax(logits[:, -1:], axis=-1).astype(tokens.dtype), left.k, left.v

    tokens = jax.numpy.zeros((shape.rows, 1), jax.numpy.int32)
    positions = jax.numpy.zeros((shape.rows, 1), jax.numpy.int32)
    k, v, tables = cache.k, cache.v, cache.tables
    run = jax.jit(step, donate_argnums=(3, 4))
    compiled = run.lower(params, tokens, positions, k, v, tables).compile()
    one = jax.numpy.ones_like(positions)
    jax.block_until_ready(positions + one)  # compiled before the timing
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        tokens, k, v = compiled(params, tokens, positions, k, v, tables)
        jax.block_until_ready(tokens)
        found.append(time.perf_counter() - begin)
        positions = positions + one
    return found


def main(arguments: Sequence[str]) -> int:
    """Print the seconds as JSON."""
    shape, count = StepShape(**json.loads(arguments[0])), int(arguments[1])
    print(json.dumps(_seconds(shape, count)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
