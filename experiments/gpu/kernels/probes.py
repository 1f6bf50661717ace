"""Probe kernel: rate at which SMs read an array by TMA from any memory, in all and by group.

The boxes of an array W[K, N] are dealt out to CTAs in groups. A CTA keeps a ring of boxes in flight
and computes nothing, so that its time is that of the memory system. The CTAs of a cluster load each
box together, each its share, and multicast it. Every CTA writes out its last box, so that a test
can check the data, and its start and end times.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.counting import Int, dealt, div, rem
from pallas_kernels.hopper import BARRIER_BYTES, TMA_BOX, check_shared_bytes, expect
from pallas_kernels.host_memory import host_ref
from pallas_kernels.mosaic import Ref, plgpu, swizzled

__all__ = ["Streaming", "last_items", "launcher", "scalars"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """Shapes that are compiled: array, box, ring, cluster, grid."""

    k: int
    n: int
    rows: int = 64  # of a box
    columns: int = 128
    stages: int = 8
    cluster: int = 1
    sm_count: int = 132
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        expect(self.k % self.rows == 0, "rows", self.rows, f"a divisor of k={self.k}")
        expect(self.n % self.columns == 0, "columns", self.columns, f"a divisor of n={self.n}")
        for name in ("rows", "columns"):
            value = getattr(self, name)
            expect(0 < value <= TMA_BOX, name, value, f"1 to {TMA_BOX}")
        expect(self.cluster in (1, 2, 4, 8), "cluster", self.cluster, "1, 2, 4 or 8")
        expect(self.sm_count >= self.cluster, "sm_count", self.sm_count, "at least cluster")
        check_shared_bytes(self.stages * self.box_bytes + BARRIER_BYTES, f"stages={self.stages}")

    @property
    def box_bytes(self) -> int:
        """Bytes of one box."""
        return self.rows * self.columns * jnp.dtype(self.dtype).itemsize

    @property
    def boxes(self) -> int:
        """Boxes of the array."""
        return (self.k // self.rows) * (self.n // self.columns)

    @property
    def clusters(self) -> int:
        """Clusters in the grid."""
        return self.sm_count // self.cluster


def scalars(streaming: Streaming, *, sms: int, passes: int = 1, groups: int = 1) -> np.ndarray:
    """Return the run-time arguments of a launch.

    Args:
      streaming: compiled shapes.
      sms: SMs that load, in all groups; rounded down to whole clusters a group.
      passes: number of reads of the array.
      groups: groups of SMs, each of which reads its own equal part of the array.

    Raises:
      ValueError: there are fewer SMs than groups need, or more than the grid has.
    """
    per_group = sms // (streaming.cluster * groups)
    expect(
        per_group >= 1 and sms <= streaming.sm_count,
        "sms",
        sms,
        f"{streaming.cluster * groups} to {streaming.sm_count}",
    )
    return np.array([per_group, groups, streaming.boxes // groups, passes], np.int32)


def last_items(run: np.ndarray) -> dict[int, int]:
    """Return the box that each cluster with work loads last."""
    per_group, groups, boxes, _ = (int(v) for v in run)
    found = {}
    for cluster in range(per_group * groups):
        group, member = divmod(cluster, per_group)
        mine = int(dealt(boxes, per_group, member))
        if mine:
            found[cluster] = group * boxes + member + (mine - 1) * per_group
    return found


def launcher(
    streaming: Streaming, *, interpret: Any = None
) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """Return the jitted `stream(w, scalars) -> (last, nanoseconds)`.

    `last` is [CTAs, rows, columns], the box that each CTA loaded last; `nanoseconds` is int32
    [CTAs, 2], the low half of the GPU's timer at start and end (zeros in interpret mode). Rows of
    CTAs without work are not written.
    """
    stream: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
    stream = _launcher(streaming, interpret)
    return stream


@functools.cache
def _launcher(streaming: Streaming, interpret: Any) -> Any:
    kernel = _kernel(streaming, interpret)

    @jax.jit
    def stream(w: jax.Array, run: jax.Array) -> Any:
        return kernel(host_ref(w), run)

    return stream


def _kernel(streaming: Streaming, interpret: Any) -> Any:
    many, stages = streaming.cluster > 1, streaming.stages
    k_boxes = streaming.k // streaming.rows
    now = _timer() if interpret is None else lambda: jnp.int32(0)
    multicast: dict[str, Any] = {"collective_axes": "rank"} if many else {}

    def body(
        w: Ref, run: Ref, last: Ref, times: Ref, tiles: Ref, full: Ref, empty: Ref | None
    ) -> None:
        per_group, groups, boxes, passes = run[0], run[1], run[2], run[3]
        cluster = lax.axis_index("cluster")
        cta = cluster * streaming.cluster + (lax.axis_index("rank") if many else 0)
        group, member = div(cluster, per_group), rem(cluster, per_group)
        mine = jnp.where(group < groups, dealt(boxes, per_group, member), 0)
        total = mine * passes

        def box(turn: Int) -> Ref:
            item = group * boxes + member + rem(turn, mine) * per_group
            return w.at[
                pl.ds(rem(item, k_boxes) * streaming.rows, streaming.rows),
                pl.ds(div(item, k_boxes) * streaming.columns, streaming.columns),
            ]

        def arrived(slot: Int) -> None:
            """Wait until a box has arrived here and, in a cluster, at every peer.

            Peers write into this slot, so none may load the next box earlier; and a CTA must not
            end while its multicast is on its way to a peer.
            """
            plgpu.barrier_wait(full.at[slot])
            if empty is not None:
                plgpu.barrier_arrive(empty.at[slot])
                plgpu.barrier_wait(empty.at[slot])

        @pl.when(total > 0)
        def _work() -> None:
            times[cta, 0] = now()

            @pl.loop(0, total)
            def _turn(turn: Int) -> None:
                slot = rem(turn, stages)

                pl.when(turn >= stages)(lambda: arrived(slot))

                plgpu.copy_gmem_to_smem(box(turn), tiles.at[slot], full.at[slot], **multicast)

            @pl.loop(jnp.maximum(total - stages, 0), total)
            def _drain(turn: Int) -> None:
                arrived(rem(turn, stages))

            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(tiles.at[rem(total - 1, stages)], last.at[cta])
            plgpu.wait_smem_to_gmem(0)
            times[cta, 1] = now()

    dtype = jnp.dtype(streaming.dtype)
    box_shape = (streaming.rows, streaming.columns)
    ctas = streaming.clusters * streaming.cluster
    scratch: list[Any] = [
        plgpu.SMEM((stages, *box_shape), dtype, transforms=swizzled(streaming.columns, dtype)),
        plgpu.Barrier(num_arrivals=1, num_barriers=stages),
    ]
    options: dict[str, Any] = {} if interpret is None else {"interpret": interpret}
    if many:
        scratch.append(plgpu.ClusterBarrier(collective_axes=("rank",), num_barriers=stages))
        options |= {"cluster": (streaming.cluster,), "cluster_names": ("rank",)}

    def alone(w: Ref, run: Ref, last: Ref, times: Ref, tiles: Ref, full: Ref) -> None:
        body(w, run, last, times, tiles, full, None)

    return plgpu.kernel(
        body if many else alone,
        out_type=(
            jax.eval_shape(lambda: jnp.zeros((ctas, *box_shape), dtype)),
            jax.eval_shape(lambda: jnp.zeros((ctas, 2), jnp.int32)),
        ),
        grid=(streaming.clusters,),
        grid_names=("cluster",),
        scratch_types=scratch,
        **options,
    )


def _timer() -> Callable[[], Any]:
    """Return a function that reads the low half of the GPU's nanosecond timer in a kernel."""
    from jax.experimental.mosaic import gpu as mosaic

    @plgpu.inline_mgpu(  # type: ignore[untyped-decorator]
        return_type=plgpu.ShapeDtypeStruct((), jnp.int32, layout=plgpu.Layout.WG_SPLAT(()))
    )
    def read(_context: Any) -> Any:
        value = mosaic.utils.globaltimer("low")
        return mosaic.FragmentedArray.splat(value, (), is_signed=True)

    def now() -> Any:
        return read()

    return now
