"""What one CTA of the kernel sees: its share of the work, its tiles, buffers and barriers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.counting import Int, dealt
from pallas_kernels.hopper import Epilogue
from pallas_kernels.hybrid_gemm.config import Config
from pallas_kernels.hybrid_gemm.schedule import Counts, Plan, first_pass
from pallas_kernels.hybrid_gemm.specs import Gemm
from pallas_kernels.mosaic import Ref

Accumulate = Callable[[Ref, Ref], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cta:
    """One CTA's view: what it works on, its share of the work, its buffers and barriers."""

    config: Config
    gemm: Gemm
    sizes: Counts
    store: Epilogue
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
    # shared memory; the sym and asym tiles share the same bytes
    sym_x: Ref
    sym_w: Ref
    asym_x: Ref
    asym_w: Ref
    staging: Ref
    # barriers
    sym_full: Ref
    sym_empty: Ref
    asym_full: Ref
    asym_empty: Ref
    slice_full: Ref
    slice_empty: Ref

    def w_tile(self, k_step: Int, strip: Int) -> Ref:
        """The tk x tn piece of W in global memory, in its own layout."""
        ks = pl.ds(k_step * self.config.tk, self.config.tk)
        ns = pl.ds(strip * self.config.tn, self.config.tn)
        return self.w.at[ns, ks] if self.gemm.w_layout == "nk" else self.w.at[ks, ns]

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
        return w_slot.transpose((1, 0)) if self.gemm.w_layout == "nk" else w_slot

    @property
    def sym_items(self) -> Int:
        """(Cluster of M tiles, strip) pairs of this cluster."""
        items = self.plan.sym_strips * self.sizes.row_clusters
        return dealt(items, jnp.maximum(self.plan.sym_clusters, 1), self.cluster)

    @property
    def asym_cta(self) -> Int:
        """This CTA's number among those of AsymGEMM."""
        return (self.cluster - self.plan.sym_clusters) * self.config.cluster + self.rank

    @property
    def asym_ctas(self) -> Int:
        """CTAs of AsymGEMM in the launch."""
        return (self.plan.active_clusters - self.plan.sym_clusters) * self.config.cluster

    @property
    def asym_items(self) -> Int:
        """Strips of this CTA; none beyond the active clusters."""
        left = self.sizes.strips - self.plan.sym_strips
        mine = dealt(left, jnp.maximum(self.asym_ctas, 1), self.asym_cta)
        return jnp.where(self.cluster < self.plan.active_clusters, mine, 0)

    def asym_strip(self, item: Int) -> Int:
        """The strip of an item."""
        return self.plan.sym_strips + item * self.asym_ctas + self.asym_cta

    @property
    def first(self) -> Int:
        """K steps of the first pass."""
        return first_pass(self.config, self.sizes.k_steps, self.asym_cta)

    def pass_steps(self, number: Int) -> tuple[Int, Int]:
        """(First K step, number of K steps) of a pass of AsymGEMM."""
        ring, first = self.config.ring, self.first
        start = jnp.where(number == 0, 0, first + (number - 1) * ring)
        length = jnp.where(number == 0, first, ring)
        return start, jnp.minimum(length, self.sizes.k_steps - start)
