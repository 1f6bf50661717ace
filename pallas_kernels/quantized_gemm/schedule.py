"""Who computes what: the arithmetic of the persistent launch, shared by kernel and traffic count.

Every function takes Python integers or traced int32 scalars, none below zero.

Columns are cut into strips of tn, rows into clusters of `cluster` tiles of tm. An item is one
(cluster of tiles, strip); the first `active_clusters` clusters take them in turn, the others do
nothing (an emulated slice).
"""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.counting import Int, ceil_div, div, rem
from pallas_kernels.quantized_gemm.config import Config
from pallas_kernels.quantized_gemm.specs import QuantizedGemm


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The run-time scalars of a launch, in the order in which the kernel reads them."""

    active_clusters: Int
    layer: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Sizes of a GEMM in tiles."""

    strips: int  # columns / tn
    row_tiles: int  # rows / tm
    row_clusters: int  # rows / (tm * cluster)
    groups: int  # scales of a column
    k_steps: int  # K / tk

    @property
    def group_steps(self) -> int:
        """K steps of a group, where groups are whole steps."""
        return self.k_steps // self.groups

    @property
    def items(self) -> int:
        """(Cluster of row tiles, strip) pairs."""
        return self.strips * self.row_clusters


def counts(config: Config, gemm: QuantizedGemm) -> Counts:
    """Return the sizes of `gemm` in the tiles of `config`, each rounded up."""
    return Counts(
        strips=int(ceil_div(gemm.n, config.tn)),
        row_tiles=int(ceil_div(gemm.m, config.tm)),
        row_clusters=int(ceil_div(gemm.m, config.tm * config.cluster)),
        groups=gemm.groups,
        k_steps=gemm.k // config.tk,
    )


def tile(item: Int, sizes: Counts, cluster: int, rank: Int) -> tuple[Int, Int]:
    """Return (row tile, strip) of one item for the CTA `rank` of its cluster.

    Neighbours in time share a strip of W: if the L2 keeps host lines, they hit.
    """
    return rem(item, sizes.row_clusters) * cluster + rank, div(item, sizes.row_clusters)
