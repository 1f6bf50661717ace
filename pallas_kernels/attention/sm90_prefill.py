"""Flash attention for Hopper (Mosaic GPU)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

from pallas_kernels.attention import online
from pallas_kernels.attention.config import PrefillConfig, check_prefill, store
from pallas_kernels.attention.cta import Buffers, Walk, load_blocks
from pallas_kernels.attention.specs import Prefill, array_type
from pallas_kernels.hopper import WGMMA_ROWS
from pallas_kernels.integer_math import Int, ceil_div, rem
from pallas_kernels.mosaic import Ref, apart, plgpu, swizzled

_ordered: Any = lax.optimization_barrier

Kernel = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


# Two compute warpgroups have 64 queries each; a third loads. K and V tiles go through a ring;
# "full" barriers mean that a tile has arrived, "empty" ones that both warpgroups have read it. The
# two take turns: while one multiplies, the other computes its softmax (`turn`). The first is always
# one turn ahead, so it alone zeroes the rows of a V tile beyond the length.
#
# Both warpgroups of a CTA walk over the key blocks that any of its queries can see, and mask only
# blocks that some cannot.
def build(
    spec: Prefill, config: PrefillConfig, *, interpret: mosaic_gpu.InterpretGPUParams | None = None
) -> Kernel:
    """Return `kernel(bounds, q, k, v) -> out`; bounds are (offset, length, window) of each row.

    Source: FlashAttention-3 (warp specialisation, two warpgroups in turns).
    """
    check_prefill(spec, config)
    tiles = ceil_div(spec.queries, config.tile)

    def body(bounds: Ref, q: Ref, k: Ref, v: Ref, out: Ref, scratch: dict[str, Ref]) -> None:
        warpgroup, head = lax.axis_index("warpgroup"), lax.axis_index("head")
        row = lax.axis_index("row")
        # Causal tiles near the end of the sequence see most keys: they start first.
        tile = tiles - 1 - lax.axis_index("tile")
        offset, length, window = bounds[row, 0], bounds[row, 1], bounds[row, 2]
        position = offset + tile * config.tile
        first, blocks = online.key_range(
            length,
            position,
            position + config.tile - 1,
            window,
            causal=spec.causal,
            block=config.block_kv,
        )
        cta = Cta(
            spec=spec,
            config=config,
            warpgroup=warpgroup,
            row=row,
            head=head,
            query=tile * config.tile,
            offset=offset,
            length=length,
            window=window,
            first=first,
            blocks=blocks,
            q=q,
            k=k,
            v=v,
            out=out,
            at=Buffers(**scratch),
        )

        apart(warpgroup, config, lambda: _load(cta), lambda: _compute(cta))

    kernel: Kernel = plgpu.kernel(
        body,
        out_type=array_type((spec.batch, spec.queries, spec.heads, spec.dim), spec.dtype),
        grid=(tiles, spec.batch, spec.heads),  # the last varies fastest: heads share keys in L2
        grid_names=("tile", "row", "head"),
        num_threads=config.warpgroups + 1,
        thread_name="warpgroup",
        scratch_types=[_buffers(spec, config, interpreted=interpret is not None)],
        **online.options(interpret),
    )
    return kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Cta(Walk):
    """One CTA's view: its queries, and the keys that any of them can see."""

    spec: Prefill
    config: PrefillConfig
    warpgroup: Int  # where this thread stands
    query: Int  # first one of the CTA
    offset: Int  # of the batch row

    @property
    def own_query(self) -> Int:
        """First query of this warpgroup."""
        return self.query + self.warpgroup * WGMMA_ROWS

    def take_turns(self) -> None:
        """Pass the turn to the other warpgroup and await it."""
        plgpu.barrier_arrive(self.at.turn)
        plgpu.barrier_wait(self.at.turn)


def _load(cta: Cta) -> None:
    block, kv_head = cta.config.block_kv, lax.div(cta.head, jnp.int32(cta.spec.group))

    def whole(step: Int) -> list[tuple[tuple[Any, ...], Any]]:
        keys = pl.ds((cta.first + step) * block, block)
        return [((cta.row, keys, kv_head), slice(None))]

    load_blocks(cta, cta.config.stages, whole)


def _compute(cta: Cta) -> None:
    warpgroup, query = cta.warpgroup, cta.own_query
    plgpu.copy_gmem_to_smem(
        cta.q.at[cta.row, pl.ds(query, WGMMA_ROWS), cta.head],
        cta.at.q_s.at[warpgroup],
        cta.at.q_full.at[warpgroup],
    )
    plgpu.barrier_wait(cta.at.q_full.at[warpgroup])
    pl.when(cta.blocks > 0)(lambda: plgpu.barrier_wait(cta.at.k_full.at[0]))
    pl.when(warpgroup == 1)(cta.take_turns)
    carry = lax.fori_loop(
        0, cta.blocks, lambda step, carry: _visit(cta, step, carry), online.start(cta.spec.dim)
    )
    pl.when(warpgroup == 0)(cta.take_turns)
    value, _ = online.finish(*carry)
    how = store(cta.spec.dim, cta.spec.dtype)
    online.write(
        value,
        cta.at.out_s.at[warpgroup],
        lambda column: cta.out.at[
            cta.row, pl.ds(query, WGMMA_ROWS), cta.head, pl.ds(column, how.columns)
        ],
        how,
    )
    plgpu.wait_smem_to_gmem(0)


def _visit(cta: Cta, step: Int, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    spec, config = cta.spec, cta.config
    slot = rem(step, config.stages)
    first_key = (cta.first + step) * config.block_kv

    def scores(ref: Ref) -> Any:
        plgpu.wgmma(ref, cta.at.q_s.at[cta.warpgroup], cta.at.k_s.at[slot].transpose((1, 0)))
        cta.take_turns()
        return ref[...]

    s = pl.run_scoped(scores, plgpu.ACC((WGMMA_ROWS, config.block_kv), jnp.float32))
    plgpu.barrier_arrive(cta.at.k_empty.at[slot])
    see = online.Bounds(
        length=cta.length,
        first_row=cta.offset + cta.own_query,
        window=cta.window,
        causal=spec.causal,
        rows_advance=True,
    )
    weights, (acc, maximum, total) = online.weighed(s, first_key, see, carry, spec.scale)
    rounded = weights.astype(jnp.dtype(spec.dtype))
    # All of the softmax belongs before the wait: the other warpgroup multiplies now.
    acc, maximum, total, rounded = _ordered((acc, maximum, total, rounded))
    plgpu.barrier_wait(cta.at.v_full.at[slot])

    @pl.when(cta.warpgroup == 0)
    def _clean() -> None:
        online.zero_beyond(cta.at.v_s.at[slot], first_key, cta.length)

    cta.take_turns()

    def next_k() -> None:
        @pl.when(step + 1 < cta.blocks)
        def _wait() -> None:
            plgpu.barrier_wait(cta.at.k_full.at[rem(step + 1, config.stages)])

    multiply = (
        online.in_registers
        if cta.at.weights_s is None
        else online.through_memory(cta.at.weights_s.at[cta.warpgroup])
    )
    acc = multiply(acc, rounded, cta.at.v_s.at[slot], next_k)
    plgpu.barrier_arrive(cta.at.v_empty.at[slot])
    return acc, maximum, total


def _buffers(spec: Prefill, config: PrefillConfig, *, interpreted: bool) -> dict[str, Any]:
    dtype, how, compute = jnp.dtype(spec.dtype), store(spec.dim, spec.dtype), config.warpgroups

    def tiles(number: int, rows: int, columns: int) -> Any:
        return plgpu.SMEM((number, rows, columns), dtype, transforms=swizzled(columns, dtype))

    ring = tiles(config.stages, config.block_kv, spec.dim)
    full = plgpu.Barrier(num_barriers=config.stages)
    empty = plgpu.Barrier(num_arrivals=compute, num_barriers=config.stages)
    types = {
        "q_s": tiles(compute, WGMMA_ROWS, spec.dim),
        "k_s": ring,
        "v_s": ring,
        "out_s": plgpu.SMEM(
            (compute, how.slots, WGMMA_ROWS, how.columns),
            dtype,
            transforms=swizzled(how.columns, dtype),
        ),
        "q_full": plgpu.Barrier(num_barriers=compute),
        "k_full": full,
        "v_full": full,
        "k_empty": empty,
        "v_empty": empty,
        "turn": plgpu.Barrier(num_arrivals=compute),
    }
    if interpreted:
        types["weights_s"] = tiles(compute, WGMMA_ROWS, config.block_kv)
    return types
