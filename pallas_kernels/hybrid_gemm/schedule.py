"""Who computes what: the arithmetic of the persistent launch, shared by kernel and tests.

Every function takes Python integers or traced int32 scalars, none below zero.

Columns are dealt out in strips of tn. The first `sym_strips` go to SymGEMM, the others to AsymGEMM.
The first `sym_clusters` of the `active_clusters` run SymGEMM, and each takes every
`sym_clusters`-th (cluster of M tiles, strip); the n others run AsymGEMM and each takes every n-th
group of neighbouring strips, one for each of its CTAs. Clusters from `active_clusters` up do
nothing (an emulated slice).
"""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.counting import Int, div, rem, round_up
from pallas_kernels.hybrid_gemm.config import Config
from pallas_kernels.hybrid_gemm.specs import Gemm

SUM_BYTES = 4  # of a partial sum, float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The run-time scalars of a launch, in the order in which the kernel reads them."""

    sym_strips: Int
    sym_clusters: Int
    active_clusters: Int
    layer: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Sizes of a GEMM in tiles."""

    strips: int  # columns / tn
    row_tiles: int  # rows / tm
    row_clusters: int  # rows / (tm * cluster)
    k_steps: int  # K / tk


def counts(config: Config, gemm: Gemm) -> Counts:
    """Return the sizes of `gemm` in the tiles of `config`, each rounded up."""
    return Counts(
        strips=-(-gemm.n // config.tn),
        row_tiles=-(-gemm.m // config.tm),
        row_clusters=-(-gemm.m // (config.tm * config.cluster)),
        k_steps=-(-gemm.k // config.tk),
    )


def sym_tile(item: Int, row_clusters: int, cluster: int, rank: Int) -> tuple[Int, Int]:
    """Return (M tile, strip) of one item for the CTA `rank` of its cluster.

    Neighbours in time share a strip of W: if the L2 keeps host lines, they hit.
    """
    return rem(item, row_clusters) * cluster + rank, div(item, row_clusters)


def first_pass(config: Config, k_steps: int, cluster: Int) -> Int:
    """Return the number of K steps in the first pass of AsymGEMM in its `cluster`-th cluster.

    Full length where one pass covers K: a second one would read and write O again.
    """
    if k_steps <= config.ring:
        return k_steps
    return rem(cluster, config.ring) + 1 if config.stagger else config.ring


def passes(config: Config, k_steps: int, first: Int) -> Int:
    """Return the number of K passes, the first of which has `first` steps."""
    return div(k_steps - first + config.ring - 1, config.ring) + 1


def sums_shape(config: Config, gemm: Gemm) -> tuple[int, int, int] | None:
    """Return the shape of the device memory in which AsymGEMM adds partial sums, in float32.

    A tile of all rows and one strip for each CTA that can have a strip, used again for its next
    one. None where one pass covers K, or where O is float32 itself and takes the sums.
    """
    sizes = counts(config, gemm)
    if sizes.k_steps <= config.ring or gemm.out_dtype == "float32":
        return None
    ctas = min(config.clusters * config.cluster, round_up(sizes.strips, config.cluster))
    return ctas, sizes.row_tiles * config.tm, config.tn
