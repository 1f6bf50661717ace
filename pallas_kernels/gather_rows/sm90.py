"""Gather kernel for Hopper (Mosaic GPU)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

from pallas_kernels.gather_rows.specs import GatherRows
from pallas_kernels.integer_math import Int, dealt, div, rem
from pallas_kernels.mosaic import Ref, persistent, plgpu

Kernel = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


# Items, (token, piece of its row), are dealt round-robin to a persistent grid. One warpgroup of
# each CTA reads the token's id, loads the piece into a slot of a ring and stores it to the output.
# Loads are issued `stages - 1` items ahead: the time of a row follows its bytes, not the link's
# latency.
#
# Pieces are contiguous and multiples of 16 bytes, for which the hardware needs no tensor map and
# has no limit of 256 elements per side.
def build(gather: GatherRows, *, interpret: mosaic_gpu.InterpretGPUParams | None = None) -> Kernel:
    """Return `kernel(table, ids, active) -> out`: clamped int32 ids, working CTAs."""
    pieces, width, stages, ctas = gather.pieces, gather.width, gather.stages, gather.ctas

    def body(table: Ref, ids: Ref, limit: Ref, out: Ref, ring: Ref, full: Ref) -> None:
        cta = lax.axis_index("cluster")
        active = jnp.clip(limit[0], 1, ctas)
        items = jnp.where(cta < active, dealt(gather.tokens * pieces, active, cta), 0)

        def place(step: Int) -> tuple[Int, Ref]:
            item = cta + step * active
            # The last piece overlaps the one before rather than reach over the edge.
            first = jnp.minimum(rem(item, pieces) * width, gather.columns - width)
            return div(item, pieces), pl.ds(first, width)

        def load(step: Int) -> None:
            token, columns = place(step)
            number = jnp.clip(ids[token], 0, gather.rows - 1)
            slot = rem(step, stages)
            plgpu.copy_gmem_to_smem(
                table.at[number, columns],
                ring.at[slot],
                full.at[slot],
                # Lets jax take the copy for contiguous bytes, which does not clip.
                oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS,
            )

        @pl.loop(0, jnp.minimum(items, stages - 1))
        def _begin(step: Int) -> None:
            load(step)

        @pl.loop(0, items)
        def _pass_on(step: Int) -> None:
            slot, ahead = rem(step, stages), step + stages - 1

            @pl.when(ahead < items)
            def _ahead() -> None:
                # Of the slot that the item before this one has left, all but read by its store.
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                load(ahead)

            plgpu.barrier_wait(full.at[slot])
            plgpu.commit_smem()
            token, columns = place(step)
            plgpu.copy_smem_to_gmem(ring.at[slot], out.at[token, columns])

        plgpu.wait_smem_to_gmem(0)

    kernel: Kernel = persistent(
        body,
        out=((gather.tokens, gather.columns), gather.dtype),
        clusters=ctas,
        cluster=1,
        warpgroups=0,  # the one that loads is all there is
        scratch=[
            plgpu.SMEM((stages, width), jnp.dtype(gather.dtype)),
            plgpu.Barrier(num_barriers=stages),
        ],
        interpret=interpret,
    )
    return kernel
