"""What one CTA of the kernel sees: its share of the work, its tiles, buffers and barriers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.counting import Int, ceil_div, dealt
from pallas_kernels.hopper import Piece
from pallas_kernels.hybrid_gemm.config import Config
from pallas_kernels.hybrid_gemm.schedule import Counts, Plan, first_pass
from pallas_kernels.hybrid_gemm.specs import PACK_MULTIPLE, Gemm
from pallas_kernels.mosaic import Ref

Accumulate = Callable[[Ref, Ref], None]


def w_copies(config: Config, gemm: Gemm) -> int:
    """Return how many copies load a tile of W: tile-major, one for each 64 columns."""
    return config.tn // PACK_MULTIPLE if gemm.w_layout == "tiles" else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cta:
    """One CTA's view: what it works on, its share of the work, its buffers and barriers."""

    config: Config
    gemm: Gemm
    sizes: Counts
    accumulate: Accumulate
    # where this thread stands
    warpgroup: Int
    cluster: Int
    rank: Int  # within the cluster
    # run-time scalars
    plan: Plan
    # global memory
    x: Ref
    w: Ref  # one layer
    o: Ref
    sums: Ref | None  # float32 [CTA of AsymGEMM, row, column], as `schedule.sums_shape` says
    # shared memory; the sym and asym tiles share the same bytes
    sym_x: Ref
    sym_w: Ref
    asym_x: Ref
    asym_w: Ref
    staging: Ref  # of pieces of O
    sums_staging: Ref | None  # of pieces of `sums`, in the same bytes
    # barriers
    sym_full: Ref
    sym_empty: Ref
    asym_full: Ref
    asym_empty: Ref
    slice_full: Ref
    slice_empty: Ref

    def w_tile(self, k_step: Int, strip: Int, slot: Ref) -> list[tuple[Ref, Ref]]:
        """The tk x tn piece of W in global memory and where it goes, in `w_copies` parts."""
        tn, tk = self.config.tn, self.config.tk
        if self.gemm.w_layout == "tiles":
            blocks = w_copies(self.config, self.gemm)
            return [
                (
                    self.w.at[strip * blocks + i, k_step],
                    slot.at[pl.ds(i * PACK_MULTIPLE, PACK_MULTIPLE)],
                )
                for i in range(blocks)
            ]
        ks, ns = pl.ds(k_step * tk, tk), pl.ds(strip * tn, tn)
        return [(self.w.at[ns, ks] if self.gemm.w_layout == "nk" else self.w.at[ks, ns], slot)]

    def x_tile(self, row_tile: Int, k_step: Int) -> Ref:
        """The tm x tk piece of X in global memory."""
        tm, tk = self.config.tm, self.config.tk
        return self.x.at[pl.ds(row_tile * tm, tm), pl.ds(k_step * tk, tk)]

    def own_rows(self, x_slot: Ref) -> Ref:
        """The rows of an X tile in shared memory that this warpgroup multiplies."""
        rows = self.config.warpgroup_rows
        return x_slot.at[pl.ds(self.warpgroup * rows, rows)]

    def operand(self, w_slot: Ref) -> Ref:
        """A W tile in shared memory as [tk, tn], whatever its layout; a view, nothing moves."""
        return w_slot if self.gemm.w_layout == "kn" else w_slot.transpose((1, 0))

    @property
    def multicast(self) -> dict[str, str]:
        """Options of a copy whose tile every CTA of the cluster wants: each loads a share."""
        return {"collective_axes": "rank"} if self.config.cluster > 1 else {}

    @property
    def sym_items(self) -> Int:
        """(Cluster of M tiles, strip) pairs of this cluster."""
        items = self.plan.sym_strips * self.sizes.row_clusters
        return dealt(items, jnp.maximum(self.plan.sym_clusters, 1), self.cluster)

    @property
    def asym_cluster(self) -> Int:
        """This cluster's number among those of AsymGEMM."""
        return self.cluster - self.plan.sym_clusters

    @property
    def asym_clusters(self) -> Int:
        """Clusters of AsymGEMM in the launch."""
        return self.plan.active_clusters - self.plan.sym_clusters

    @property
    def asym_items(self) -> Int:
        """Groups of strips of this cluster, a strip for each CTA; none beyond the active ones."""
        groups = ceil_div(self.sizes.strips - self.plan.sym_strips, self.config.cluster)
        mine = dealt(groups, jnp.maximum(self.asym_clusters, 1), self.asym_cluster)
        return jnp.where(self.cluster < self.plan.active_clusters, mine, 0)

    def asym_strip(self, item: Int) -> Int:
        """The strip of an item.

        Of the last group some CTAs may have one beyond N: they load zeros, TMA clips what they
        store, and their share of X reaches the others.
        """
        group = item * self.asym_clusters + self.asym_cluster
        return self.plan.sym_strips + group * self.config.cluster + self.rank

    @property
    def top(self) -> Int:
        """First row, within a tile, of this warpgroup."""
        return self.warpgroup * self.config.warpgroup_rows

    def o_piece(self, row_tile: Int, strip: Int, piece: Piece) -> Ref:
        """Where a piece of this warpgroup's rows of a tile stands in O."""
        top = row_tile * self.config.tm + self.top
        return self.o.at[
            pl.ds(top + piece.row, piece.rows),
            pl.ds(strip * self.config.tn + piece.column, piece.columns),
        ]

    def sums_piece(self, row_tile: Int, piece: Piece) -> Ref:
        """Where it stands in the sums of this CTA's strip."""
        assert self.sums is not None
        top = row_tile * self.config.tm + self.top
        cta = self.asym_cluster * self.config.cluster + self.rank
        return self.sums.at[
            cta, pl.ds(top + piece.row, piece.rows), pl.ds(piece.column, piece.columns)
        ]

    @property
    def first(self) -> Int:
        """K steps of the first pass, the same in every CTA of a cluster."""
        return first_pass(self.config, self.sizes.k_steps, self.asym_cluster)

    def pass_steps(self, number: Int) -> tuple[Int, Int]:
        """(First K step, number of K steps) of a pass of AsymGEMM."""
        ring, first = self.config.ring, self.first
        start = jnp.where(number == 0, 0, first + (number - 1) * ring)
        length = jnp.where(number == 0, first, ring)
        return start, jnp.minimum(length, self.sizes.k_steps - start)
