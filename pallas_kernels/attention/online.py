"""Online softmax of one warpgroup."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.attention.config import Store
from pallas_kernels.hopper import WGMMA_ROWS
from pallas_kernels.integer_math import Int, ceil_div, div
from pallas_kernels.mosaic import Ref, plgpu

_LOG2_E = math.log2(math.e)
_LN_2 = math.log(2.0)

Value = Any  # an array in registers
Product = Callable[[Value, Value, Ref, Callable[[], None]], Value]
"""(accumulator, weights, V tile, what to do meanwhile) -> accumulator + weights @ V."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of the keys that a row may see."""

    length: Int
    first_row: Int  # position of the warpgroup's first row
    window: Int  # `specs.UNBOUNDED` if there is none
    causal: bool  # whether position limits the keys at all
    rows_advance: bool  # whether each row is one position further (prefill) or none is (decode)

    @property
    def last_row(self) -> Int:
        """Position of the last row."""
        return self.first_row + (WGMMA_ROWS - 1 if self.rows_advance else 0)


def key_range(
    length: Int, first: Int, last: Int, window: Int, *, causal: bool, block: int
) -> tuple[Int, Int]:
    """Return (first block, number of blocks) visible to rows at positions `first` to `last`."""
    top = jnp.minimum(length, last + 1) if causal else length
    bottom = jnp.maximum(first - window + 1, 0) if causal else 0
    start = div(bottom, block)
    return start, jnp.maximum(ceil_div(jnp.maximum(top, 0), block) - start, 0)


# Scores are in powers of two (`scale * log2(e)` is folded into the exponent), so one fused
# multiply-add and one exp2 make a weight. A row that has seen no key has maximum -inf and sum 0.
def start(dim: int) -> tuple[Value, Value, Value]:
    """Return the initial (accumulator, row maxima, row sums)."""
    row = plgpu.Layout.WGMMA.reduce(1)
    return (
        plgpu.layout_cast(jnp.zeros((WGMMA_ROWS, dim), jnp.float32), plgpu.Layout.WGMMA),
        plgpu.layout_cast(jnp.full((WGMMA_ROWS,), -jnp.inf, jnp.float32), row),
        plgpu.layout_cast(jnp.zeros((WGMMA_ROWS,), jnp.float32), row),
    )


def weighed(
    scores: Value, first_key: Int, bounds: Bounds, carry: tuple[Value, Value, Value], scale: float
) -> tuple[Value, tuple[Value, Value, Value]]:
    """Return a block's weights, and the rescaled carry."""
    acc, maximum, total = carry
    weights, factor, maximum = update(masked(scores, first_key, bounds), maximum, scale)
    acc = acc * lax.broadcast_in_dim(factor, acc.shape, [0])
    return weights, (acc, maximum, total * factor + weights.sum(axis=1))


def masked(scores: Value, first_key: Int, bounds: Bounds) -> Value:
    """Set scores of unseen keys to -inf; free for a block that all rows see."""
    keys = scores.shape[1]
    end = first_key + keys
    whole = end <= bounds.length
    if bounds.causal:
        whole &= end <= bounds.first_row + 1
        whole &= first_key > bounds.last_row - bounds.window

    def apply() -> Value:
        def iota(axis: int) -> Value:
            return plgpu.broadcasted_iota(jnp.int32, scores.shape, axis, layout=plgpu.Layout.WGMMA)

        key = iota(1) + first_key
        visible = key < bounds.length
        if bounds.causal:
            position = iota(0) + bounds.first_row if bounds.rows_advance else bounds.first_row
            visible &= key <= position
            visible &= key > position - bounds.window
        return jnp.where(visible, scores, -jnp.inf)

    return lax.cond(whole, lambda: scores, apply)


def update(scores: Value, maximum: Value, scale: float) -> tuple[Value, Value, Value]:
    """Return (weights, factor for earlier sums, new row maxima)."""
    factor = scale * _LOG2_E
    higher = jnp.maximum(maximum, scores.max(axis=1) * factor)
    # A row without keys keeps -inf, and -inf - -inf is NaN: it subtracts 0 instead.
    base = jnp.where(higher == -jnp.inf, 0.0, higher)
    weights = jnp.exp2(scores * factor - lax.broadcast_in_dim(base, scores.shape, [0]))
    return weights, jnp.exp2(maximum - base), higher


def zero_beyond(tile: Ref, first_key: Int, length: Int) -> None:
    """Zero the rows of a V tile beyond the length: 0 * NaN is NaN."""

    @pl.when(first_key + tile.shape[0] > length)
    def _clean() -> None:
        for piece in range(tile.shape[0] // WGMMA_ROWS):
            rows = tile.at[pl.ds(piece * WGMMA_ROWS, WGMMA_ROWS)]
            value = plgpu.load(rows, layout=plgpu.Layout.WGMMA)
            row = plgpu.broadcasted_iota(jnp.int32, value.shape, 0, layout=plgpu.Layout.WGMMA)
            inside = row + (first_key + piece * WGMMA_ROWS) < length
            rows[...] = jnp.where(inside, value, jnp.zeros_like(value))
        plgpu.commit_smem()


def in_registers(acc: Value, weights: Value, v_tile: Ref, meanwhile: Callable[[], None]) -> Value:
    """`Product` of the GPU: weights from registers to wgmma."""

    def multiply(ref: Ref) -> None:
        plgpu.wgmma(ref, weights, v_tile)
        meanwhile()

    return pl.run_state(multiply)(plgpu.ACC.init(acc))


# Interpret mode lacks wgmma with its left operand in registers, and a wgmma accumulator that starts
# from values. Only `Product` differs between CPU and GPU.
def through_memory(scratch: Ref) -> Product:
    """`Product` of interpret mode: weights through shared memory."""

    def product(acc: Value, weights: Value, v_tile: Ref, meanwhile: Callable[[], None]) -> Value:
        scratch[...] = weights
        plgpu.commit_smem()

        def multiply(ref: Ref) -> Value:
            plgpu.wgmma(ref, scratch, v_tile)
            plgpu.wgmma_wait(0)
            return ref[...]

        part = pl.run_scoped(multiply, plgpu.ACC(acc.shape, jnp.float32))
        meanwhile()
        return acc + part

    return product


def finish(acc: Value, maximum: Value, total: Value) -> tuple[Value, Value]:
    """Return (normalised rows, log-sum-exp); without keys 0 and -inf."""
    some = total > 0
    inverse = jnp.where(some, 1.0 / total, 0.0)
    lse = jnp.where(some, maximum * _LN_2 + jnp.log(total), -jnp.inf)
    return acc * lax.broadcast_in_dim(inverse, acc.shape, [0]), lse


def write(value: Value, staging: Ref, target: Callable[[int], Ref], how: Store) -> None:
    """Round 64 rows and write them by TMA, which clips at the edge."""
    for piece in range(how.pieces):
        slot = staging.at[piece % how.slots]
        plgpu.wait_smem_to_gmem(how.slots - 1, wait_read_only=True)
        columns = slice(piece * how.columns, (piece + 1) * how.columns)
        slot[...] = value[:, columns].astype(staging.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(slot, target(piece * how.columns))


def options(interpret: Any) -> dict[str, Any]:
    """Return options of `plgpu.kernel`: hardware exp2 and log2, or interpret mode."""
    if interpret is not None:
        return {"interpret": interpret}
    return {"compiler_params": plgpu.CompilerParams(approx_math=True)}
