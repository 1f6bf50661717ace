"""Paged decode attention for Hopper (Mosaic GPU)."""

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
from pallas_kernels.attention.config import DecodeConfig, check_decode, store
from pallas_kernels.attention.cta import Buffers, Walk, load_blocks
from pallas_kernels.attention.specs import GROUP_ROWS, Decode, array_type
from pallas_kernels.integer_math import Int, ceil_div, div, rem
from pallas_kernels.mosaic import Ref, apart, plgpu, swizzled

Kernel = Callable[
    [jax.Array, jax.Array, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]
]


# A CTA computes one sequence, one KV head and one share of the keys. The query heads of that KV
# head are the rows of one wgmma (64; rows beyond the group are zero and cost no traffic), so K and
# V are read from HBM once for any ratio of heads. One warpgroup computes, one loads: it reads the
# block table at run time and loads the pages by TMA, `block_kv` keys at a time, into a ring.
#
# Each CTA writes a partial result and its log-sum-exp, float32; `partial.merge_stacked` combines
# them. A share without keys writes 0 and -inf. Table entries beyond the last page are never read.
def build(
    spec: Decode, config: DecodeConfig, *, interpret: mosaic_gpu.InterpretGPUParams | None = None
) -> Kernel:
    """Return `kernel(bounds, tables, q, k_pages, v_pages) -> (out, lse)`.

    Returns:
      A function of `bounds`, int32 [batch, 3] (query position, length, window), `tables`, int32
      [batch, table], q[batch * kv_heads, group, dim] and pages [pages, page, kv_heads, dim]. `out`
      is [splits * batch * kv_heads, group, dim] in `spec.out_dtype`, `lse` float32 [splits * batch
      * kv_heads, 64], of which the first `group` count.

    Raises:
      ValueError: too much shared memory, or unfitting block and page.
    """
    check_decode(spec, config)
    sequences = spec.batch * spec.kv_heads

    def body(
        bounds: Ref,
        tables: Ref,
        q: Ref,
        k: Ref,
        v: Ref,
        out: Ref,
        lse: Ref,
        scratch: dict[str, Ref],
    ) -> None:
        warpgroup, head = lax.axis_index("warpgroup"), lax.axis_index("head")
        row, split = lax.axis_index("row"), lax.axis_index("split")
        position, length, window = bounds[row, 0], bounds[row, 1], bounds[row, 2]
        first, blocks, _ = share_of(config, split, length, position, window)
        cta = Cta(
            spec=spec,
            config=config,
            row=row,
            head=head,
            place=split * sequences + row * spec.kv_heads + head,
            position=position,
            length=length,
            window=window,
            first=first,
            blocks=blocks,
            tables=tables,
            q=q,
            k=k,
            v=v,
            out=out,
            lse=lse,
            at=Buffers(**scratch),
        )

        def computes() -> None:
            store_part(cta, *attend(cta))

        apart(warpgroup, config, lambda: load(cta), computes)

    parts = config.splits * sequences
    kernel: Kernel = plgpu.kernel(
        body,
        out_type=(
            array_type((parts, spec.group, spec.dim), spec.out_dtype),
            array_type((parts, GROUP_ROWS), jnp.float32),
        ),
        grid=(config.splits, spec.batch, spec.kv_heads),
        grid_names=("split", "row", "head"),
        num_threads=config.warpgroups + 1,
        thread_name="warpgroup",
        scratch_types=[buffers(spec, config, interpreted=interpret is not None)],
        **online.options(interpret),
    )
    return kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Cta(Walk):
    """A CTA's view: sequence, KV head and share of keys."""

    spec: Decode
    config: DecodeConfig
    place: Int  # of its partial result
    position: Int  # of the query
    tables: Ref
    lse: Ref

    def page(self, number: Int) -> Int:
        """Return the pool's index of the sequence's page."""
        return self.tables[self.row, number]

    @property
    def own(self) -> Ref:
        """The group's queries, in global memory."""
        return self.q.at[self.row * self.spec.kv_heads + self.head, self.all_rows]

    @property
    def all_rows(self) -> Any:
        """The group's rows, and the rest of the box of 64, which TMA clips."""
        return pl.ds(rem(self.row, 1), GROUP_ROWS)


def share_of(
    config: DecodeConfig, split: Int, length: Int, position: Int, window: Int
) -> tuple[Int, Int, Int]:
    """Return (first block, number of blocks) of a split, and the last end."""
    begin, total = online.key_range(
        length, position, position, window, causal=True, block=config.block_kv
    )
    share = ceil_div(total, config.splits)
    return begin + split * share, jnp.clip(total - split * share, 0, share), begin + total


def load(cta: Cta) -> None:
    """Load a CTA's keys and values, as the load warpgroup."""
    spec, block = cta.spec, cta.config.block_kv
    pieces = cta.config.pieces(spec.page)
    rows = block // pieces  # of one TMA copy
    last_page = div(cta.length - 1, spec.page)

    def by_page(step: Int) -> list[tuple[tuple[Any, ...], Any]]:
        key = (cta.first + step) * block
        # A block may reach over the last page: that part repeats the last one, masked.
        numbers = [
            jnp.minimum(div(key + piece * rows, spec.page), last_page) for piece in range(pieces)
        ]
        pages = [cta.page(number) for number in numbers]
        inside = pl.ds(rem(key, spec.page) if spec.page > block else 0, rows)
        return [
            ((page, inside, cta.head), pl.ds(piece * rows, rows))
            for piece, page in enumerate(pages)
        ]

    load_blocks(cta, cta.config.stages, by_page)


def attend(cta: Cta) -> tuple[Any, Any]:
    """Return (rows, log-sum-exp) over a CTA's keys, as the compute warpgroup."""
    plgpu.copy_gmem_to_smem(cta.own, cta.at.q_s, cta.at.q_full)
    plgpu.barrier_wait(cta.at.q_full)
    carry = lax.fori_loop(
        0, cta.blocks, lambda step, carry: _visit(cta, step, carry), online.start(cta.spec.dim)
    )
    value, log_sum = online.finish(*carry)
    return value, log_sum


def store_part(cta: Cta, value: Any, log_sum: Any | None) -> None:
    """Write the result of `attend`, or the rows alone, and wait for the writes."""
    how = store(cta.spec.dim, cta.spec.out_dtype)
    if log_sum is not None:
        cta.at.lse_s[...] = log_sum
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(cta.at.lse_s, cta.lse.at[cta.place])
    online.write(
        value,
        cta.at.out_s,
        lambda column: cta.out.at[cta.place, cta.all_rows, pl.ds(column, how.columns)],
        how,
    )
    plgpu.wait_smem_to_gmem(0)


def _visit(cta: Cta, step: Int, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    spec, config = cta.spec, cta.config
    slot = rem(step, config.stages)
    first_key = (cta.first + step) * config.block_kv
    plgpu.barrier_wait(cta.at.k_full.at[slot])

    def scores(ref: Ref) -> Any:
        plgpu.wgmma(ref, cta.at.q_s, cta.at.k_s.at[slot].transpose((1, 0)))
        return ref[...]

    s = pl.run_scoped(scores, plgpu.ACC((GROUP_ROWS, config.block_kv), jnp.float32))
    plgpu.barrier_arrive(cta.at.k_empty.at[slot])
    see = online.Bounds(
        length=cta.length,
        first_row=cta.position,
        window=cta.window,
        causal=True,
        rows_advance=False,
    )
    weights, (acc, maximum, total) = online.weighed(s, first_key, see, carry, spec.scale)
    plgpu.barrier_wait(cta.at.v_full.at[slot])
    online.zero_beyond(cta.at.v_s.at[slot], first_key, cta.length)
    rounded = weights.astype(jnp.dtype(spec.dtype))
    multiply = (
        online.in_registers if cta.at.weights_s is None else online.through_memory(cta.at.weights_s)
    )
    acc = multiply(acc, rounded, cta.at.v_s.at[slot], lambda: None)
    plgpu.barrier_arrive(cta.at.v_empty.at[slot])
    return acc, maximum, total


def buffers(spec: Decode, config: DecodeConfig, *, interpreted: bool) -> dict[str, Any]:
    """Return the types of `cta.Buffers`."""
    dtype, how = jnp.dtype(spec.dtype), store(spec.dim, spec.out_dtype)
    tile = {"dtype": dtype, "transforms": swizzled(spec.dim, dtype)}
    ring = plgpu.SMEM((config.stages, config.block_kv, spec.dim), **tile)
    full = plgpu.Barrier(num_arrivals=config.pieces(spec.page), num_barriers=config.stages)
    empty = plgpu.Barrier(num_barriers=config.stages)
    types = {
        "q_s": plgpu.SMEM((GROUP_ROWS, spec.dim), **tile),
        "k_s": ring,
        "v_s": ring,
        "out_s": plgpu.SMEM(
            (how.slots, GROUP_ROWS, how.columns),
            jnp.dtype(spec.out_dtype),
            transforms=swizzled(how.columns, spec.out_dtype),
        ),
        "lse_s": plgpu.SMEM((GROUP_ROWS,), jnp.float32),
        "q_full": plgpu.Barrier(),
        "k_full": full,
        "v_full": full,
        "k_empty": empty,
        "v_empty": empty,
    }
    if interpreted:
        weights = swizzled(config.block_kv, dtype)
        types["weights_s"] = plgpu.SMEM((GROUP_ROWS, config.block_kv), dtype, transforms=weights)
    return types
