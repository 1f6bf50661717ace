"""Which configuration to use: from the sizes alone; unmeasured."""

from __future__ import annotations

import math
from dataclasses import replace

from pallas_kernels.hopper import CLUSTERS, SHARED_BYTES_LIMIT
from pallas_kernels.quantized_gemm.config import (
    ROW_TILES,
    Config,
    check_fits,
    most_rows,
    shared_bytes,
)
from pallas_kernels.quantized_gemm.specs import QuantizedGemm

_MOST_STAGES = 12  # of W: 96 KiB of int4 in flight, 192 KiB of bytes


def choose(gemm: QuantizedGemm, *, sm_count: int, cluster: int | None = 1) -> Config:
    """Return the configuration for a GEMM.

    Rows: the smallest tile with which one cluster holds all rows, up to 256, so that W crosses the
    link as seldom as the cluster allows; up to 128 where there must be two accumulators. Columns:
    128, or 64 where that leaves half of the SMs without a strip. X gets four stages and W what
    shared memory is left.

    Args:
      gemm: sizes and types.
      sm_count: SMs of the launch.
      cluster: CTAs along M that share a W tile; None takes the smallest that reads W once.

    Raises:
      ValueError: `cluster` is not launchable.
    """
    # groups of 64, and of multiples, are whole K steps; of others a K step holds several
    tk = math.gcd(gemm.group_size, 128)
    if tk < (128 if gemm.kind == "int4" else 64):
        tk = 128
    tiles = tuple(t for t in ROW_TILES if t <= most_rows(gemm, tk))
    if cluster is None:
        reach = tiles[-1]
        fitting = [c for c in CLUSTERS if c <= sm_count]
        cluster = next((c for c in fitting if c * reach >= gemm.m), fitting[-1])
    tm = next((t for t in tiles if t * cluster >= gemm.m), tiles[-1])
    narrow = 2 * -(-gemm.n // 128) <= sm_count // cluster
    config = Config(
        tm=tm,
        tn=64 if narrow else 128,
        warpgroups=1 if narrow else 2,
        tk=tk,
        x_columns=tk if tm <= 64 else 64,
        x_stages=4,
        w_stages=2,
        cluster=cluster,
        sm_count=sm_count,
    )
    while config.w_stages < _MOST_STAGES:
        deeper = replace(config, w_stages=config.w_stages + 1)
        if shared_bytes(deeper, gemm) > SHARED_BYTES_LIMIT:
            break
        config = deeper
    check_fits(config, gemm)
    return config
