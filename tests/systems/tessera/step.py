"""The fixture's step with weights and tokens, and what the model itself makes of them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from c2c.systems.program.xla import XlaStep, read_dump
from c2c.systems.tessera.ptx import KernelAccess
from c2c.systems.tessera.touches import Touch, kernels_of, touches_of
from tests.systems.program.xla.make import DECODE, SHAPE
from tests.systems.tessera.interpreter.placed import Placed, Touched


@dataclass(frozen=True)
class Step:
    xla: XlaStep
    kernels: dict[str, KernelAccess]
    touches: tuple[Touch, ...]

    def placed(self, gpus: int, inputs: list[bytes] | None = None) -> Placed:
        placed = Placed(self.xla.program, gpus, self.kernels)
        for part, data in zip(self.xla.program.inputs, inputs or given(), strict=True):
            placed.write(part, data)
        return placed

    def outputs(self, placed: Placed) -> list[bytes]:
        return [placed.read(part) for part in self.xla.program.outputs]


@functools.cache
def step() -> Step:
    xla = read_dump(DECODE)
    kernels = dict(kernels_of(xla.program))
    return Step(xla, kernels, touches_of(xla.program, kernels))


@functools.cache
def arguments() -> tuple[Any, ...]:
    """Parameters, tokens, positions, keys, values and tables."""
    import jax.numpy as jnp

    from c2c.transformer import Reference, random_params

    rng = np.random.default_rng(0)
    spec = SHAPE.model()
    params = random_params(spec, rng, dtype="bfloat16", placement=Reference().placement)
    width = SHAPE.context // 64
    pages = SHAPE.rows * width
    pool = (spec.layers * pages, 64, spec.kv_heads, spec.head_dim)
    k, v = (jnp.asarray(rng.normal(size=pool), jnp.bfloat16) for _ in range(2))
    tables = jnp.asarray(rng.permutation(pages).reshape(SHAPE.rows, width), jnp.int32)
    tokens = jnp.asarray(rng.integers(0, SHAPE.vocab, (SHAPE.rows, 1)), jnp.int32)
    positions = jnp.asarray(rng.integers(1, SHAPE.context, (SHAPE.rows, 1)), jnp.int32)
    return params, tokens, positions, k, v, tables


@functools.cache
def given() -> list[bytes]:
    import jax

    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(arguments())]


@functools.cache
def executed() -> tuple[list[bytes], list[Touched]]:
    """Results of the step on one GPU, by the interpreter, and bytes that its launches touched."""
    placed = step().placed(1)
    touched = [placed.launch(number) for number in range(len(step().touches))]
    return step().outputs(placed), touched


def alone() -> list[bytes]:
    return executed()[0]
