"""What one launch moves: exact counts of bytes, as the kernel's loads and stores ask for them."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.quantized_gemm.config import Config, sum_size
from pallas_kernels.quantized_gemm.schedule import counts
from pallas_kernels.quantized_gemm.specs import QuantizedGemm, bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes and operations of a launch. None depends on the number of SMs."""

    w_bytes: int  # stored weights, from host memory; a multicast tile counts once
    scale_bytes: int  # scales and offsets, from where they are
    sum_bytes: int  # sums of X for the offsets, into shared memory, from L2 or HBM
    x_load_bytes: int  # X into shared memory, from L2 or HBM
    o_store_bytes: int
    flops: int  # useful ones
    mma_flops: int  # issued, with the padding of tiles and idle CTAs of a cluster

    @property
    def link_bytes(self) -> int:
        """Bytes over the link with the scales in host memory too, as `to_host` places them."""
        return self.w_bytes + self.scale_bytes


def launch_traffic(gemm: QuantizedGemm, config: Config) -> Traffic:
    """Count what a launch moves and computes.

    W crosses the link once for each cluster of row tiles. Scales and offsets of groups do too; a
    column's only ones are read by every CTA of the cluster, which is `cluster` times as often and
    still only 4 / K of the bytes of int8 each.

    Args:
      gemm: sizes and types.
      config: tiles.
    """
    sizes = counts(config, gemm)
    readers = config.cluster if gemm.groups == 1 else 1
    scales = gemm.n * gemm.groups * (gemm.scale_itemsize + gemm.offset_itemsize)
    sums = gemm.m * (gemm.k // sum_size(config, gemm)) * 4 if gemm.offset_dtype else 0
    tiles = sizes.row_clusters * config.cluster * sizes.strips
    return Traffic(
        w_bytes=gemm.n * gemm.k * bits(gemm.kind) // 8 * sizes.row_clusters,
        scale_bytes=scales * readers * sizes.row_clusters,
        sum_bytes=sums * sizes.strips,
        x_load_bytes=gemm.m * gemm.k * gemm.x_itemsize * sizes.strips,
        o_store_bytes=gemm.m * gemm.n * gemm.out_itemsize,
        flops=2 * gemm.m * gemm.k * gemm.n,
        mma_flops=2 * tiles * config.tm * config.tn * gemm.k,
    )
