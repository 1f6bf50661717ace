"""Tiles by rule for quantised weights and experts."""

from __future__ import annotations

import math
from dataclasses import replace

from pallas_kernels.gemm.config import (
    ROW_TILES,
    Config,
    check_fits,
    most_rows,
    pass_unit,
    shared_bytes,
)
from pallas_kernels.gemm.specs import Gemm
from pallas_kernels.hopper import SHARED_BYTES_LIMIT

_MOST_STAGES = 12  # of W: 96 KiB of int4 in flight, 192 KiB of bytes
_ASYM_STAGES = 2
_CONVERTED_STAGES = 3  # of X for quantised weights, whose ring of W is the smaller
_LONGEST_RING = 16  # W tiles of AsymGEMM, so that barriers have room


# The rules are not measured on a GPU: they follow from shared memory, registers and the traffic
# counts. They add AsymGEMM if one reading of W by SymGEMM does not serve all rows.
def by_rule(gemm: Gemm, *, sm_count: int, cluster: int) -> Config:
    """Return the configuration for quantised weights, or for experts."""
    config = (_plain if gemm.quantised is None else _converted)(gemm, sm_count, cluster)
    check_fits(config, gemm)
    return _with_asym(config, gemm) if config.block_rows < gemm.rows_each else config


def _plain(gemm: Gemm, sm_count: int, cluster: int) -> Config:
    rows = gemm.rows_each / cluster
    items = min(gemm.experts or 1, gemm.m) * -(-gemm.n // 128)
    tn = 64 if items < sm_count // cluster else 128
    common = Config(asym=False, cluster=cluster, sm_count=sm_count)
    if rows <= 64:
        return replace(common, tm=64, tn=tn, x_stages=8, w_stages=8, warpgroups=1)
    if rows <= 128:
        return replace(common, tm=128, tn=tn, x_stages=6, w_stages=6)
    return common


def _converted(gemm: Gemm, sm_count: int, cluster: int) -> Config:
    # groups of 64, and of multiples, are whole K steps; of others a K step holds several
    tk = math.gcd(gemm.group_size, 128)
    is_int4 = gemm.quantised is not None and gemm.quantised.kind == "int4"
    if tk < (128 if is_int4 else 64):
        tk = 128
    fitting = tuple(t for t in ROW_TILES if t <= most_rows(gemm, tk))
    tm = next((t for t in fitting if t * cluster >= gemm.rows_each), fitting[-1])
    columns = gemm.n * min(gemm.experts or 1, gemm.m)
    narrow = 2 * -(-columns // 128) <= sm_count // cluster
    config = Config(
        tm=tm,
        tn=64 if narrow else 128,
        warpgroups=1 if narrow else 2,
        tk=tk,
        x_columns=tk if tm <= 64 else 64,
        x_stages=4,
        w_stages=2,
        asym=False,
        cluster=cluster,
        sm_count=sm_count,
    )
    while config.w_stages < _MOST_STAGES:
        deeper = replace(config, w_stages=config.w_stages + 1)
        if shared_bytes(deeper, gemm) > SHARED_BYTES_LIMIT:
            break
        config = deeper
    return config


def _with_asym(config: Config, gemm: Gemm) -> Config:
    """Return `config` with the longest K passes of AsymGEMM in shared memory."""
    if config.tm < 64:
        return config
    stages = _ASYM_STAGES if gemm.quantised is None else _CONVERTED_STAGES
    asym = replace(config, asym=True, x_stages=stages)
    if gemm.experts is not None and gemm.quantised is None:
        # loads look up experts, which takes registers that sums of 256 rows do not leave
        asym = replace(asym, tm=128, x_stages=2 * stages, compute_registers=224, load_registers=56)
    unit = pass_unit(asym, gemm)
    most = min(_LONGEST_RING, max(2, -(-gemm.k // config.tk)))  # a ring has two slots
    for w_stages in range(max(most // unit, 1) * unit, 1, -unit):
        longer = replace(asym, w_stages=w_stages)
        if shared_bytes(longer, gemm) <= SHARED_BYTES_LIMIT:
            return longer
    return config
