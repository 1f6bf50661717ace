"""Probe kernel: rate at which all SMs add float32 tiles into an array by TMA, against stores.

Each CTA has one tile in shared memory and sends it to its own tiles of the array in turn, several
at a time. The first pass stores, the others add or store, so an array of sums is the tile times the
number of passes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from experiments.gpu import Context, Row, time_launches
from experiments.gpu.cases import Unmeasurable
from experiments.gpu.kernels import operands
from pallas_kernels.counting import Int, dealt, rem
from pallas_kernels.mosaic import Ref, plgpu, swizzled, tma_add

__all__ = ["TILE", "TILE_BYTES", "adder", "adds"]

TILE = (64, 64)  # float32
TILE_BYTES = 4 * TILE[0] * TILE[1]
_IN_FLIGHT = 8  # tiles, 128 KiB of an SM


@functools.cache
def adder(tiles: int, ctas: int, *, by_adding: bool, interpret: Any = None) -> Any:
    """Return the jitted `send(tile, passes) -> array`: float32 [tiles * 64, 64].

    Args:
      tiles: number of tiles of the array; CTA c has the tiles c, c + ctas, ...
      ctas: number of CTAs, one an SM.
      by_adding: True if passes after the first add; else they store.
      interpret: settings of interpret mode; None compiles for the GPU.
    """
    add: Callable[[Ref, Ref], None] = tma_add if interpret is None else _add_by_hand
    again = add if by_adding else plgpu.copy_smem_to_gmem

    def body(tile: Ref, passes: Ref, out: Ref, sent: Ref, arrived: Ref) -> None:
        cta = lax.axis_index("cta")
        mine = dealt(tiles, ctas, cta)
        plgpu.copy_gmem_to_smem(tile, sent, arrived)
        plgpu.barrier_wait(arrived)

        def to(item: Int) -> Ref:
            return out.at[pl.ds((cta + item * ctas) * TILE[0], TILE[0])]

        @pl.loop(0, mine)
        def _first(item: Int) -> None:
            plgpu.copy_smem_to_gmem(sent, to(item))

        plgpu.wait_smem_to_gmem(0)  # a sum begins from what was stored

        @pl.loop(mine, mine * passes[0])
        def _again(turn: Int) -> None:
            again(sent, to(rem(turn, mine)))
            plgpu.wait_smem_to_gmem(_IN_FLIGHT - 1)

        plgpu.wait_smem_to_gmem(0)

    options: dict[str, Any] = {} if interpret is None else {"interpret": interpret}
    kernel = plgpu.kernel(
        body,
        out_type=jax.eval_shape(lambda: jnp.zeros((tiles * TILE[0], TILE[1]))),
        grid=(ctas,),
        grid_names=("cta",),
        scratch_types=[
            plgpu.SMEM(TILE, jnp.float32, transforms=swizzled(TILE[1], jnp.float32)),
            plgpu.Barrier(),
        ],
        **options,
    )
    return jax.jit(kernel)


def _add_by_hand(source: Ref, target: Ref) -> None:
    """Add in interpret mode, which has no additions by TMA."""
    target[...] = target[...] + source[...]


def _launch(send: Any, tile: jax.Array, passes: jax.Array, _number: int) -> Any:
    return send(tile, passes)


def adds(span_bytes: int, passes: int, context: Context) -> Row:
    """Time additions into an array of `span_bytes`, and stores to it; `share` is their ratio.

    Raises:
      Unmeasurable: the launch that adds took no longer than the pass that it stores.
    """
    interpret, ctas = operands.interpret_settings(context), operands.sms(context)
    tiles = span_bytes // TILE_BYTES
    tile = jax.random.normal(jax.random.key(context.seed), TILE, jnp.float32)
    count = jax.device_put(jnp.array([passes], jnp.int32))
    times = []
    for by_adding in (False, True):
        send = adder(tiles, ctas, by_adding=by_adding, interpret=interpret)
        again = functools.partial(_launch, send, tile, count)
        times.append(
            time_launches(again, target_s=context.target_s, repetitions=context.repetitions)
        )
    stored_s, added_s = (time.median_s for time in times)
    adding_s = added_s - stored_s / passes  # the first pass stores
    if adding_s <= 0.0:
        raise Unmeasurable(f"{added_s:.3g} s with additions, {stored_s:.3g} s without")
    nbytes = tiles * TILE_BYTES
    added_gbps = (passes - 1) * nbytes / adding_s / 1e9
    stored_gbps = passes * nbytes / stored_s / 1e9
    return {
        "span_bytes": nbytes,
        "gbps": added_gbps,
        "stored_gbps": stored_gbps,
        "share": added_gbps / stored_gbps,
        **times[1].columns(),
    }
