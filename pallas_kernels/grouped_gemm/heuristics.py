"""Which configuration to use, from the sizes alone; the sizes of groups are not known yet.

Nothing here was measured on a GPU: the tile families follow from shared memory, registers and the
traffic counts; a tuner may replace `choose` later.
"""

from __future__ import annotations

import math

from pallas_kernels.grouped_gemm.config import Config
from pallas_kernels.grouped_gemm.specs import ROW_MULTIPLE, GroupedGemm
from pallas_kernels.hopper import CLUSTERS

_TALLEST = 256


def typical_rows(t: int, experts: int) -> int:
    """Return how many rows to expect of an expert that has many, with balanced routing.

    The mean, two standard deviations of a Poisson number, and the rows before the first one that a
    tile may begin with. Rows of real routers are less even: more experts then need a second block.
    """
    mean = t / experts
    return min(math.ceil(mean + 2 * math.sqrt(mean)), t) + ROW_MULTIPLE - 1


def choose(gemm: GroupedGemm, *, sm_count: int, cluster: int | None = 1) -> Config:
    """Return a configuration for `gemm` on `sm_count` SMs; a cluster of None is chosen, too.

    W crosses the link once for every `cluster * tm` rows of an expert, so a block should hold all
    of the rows of most experts; a taller one costs tensor work and shared memory, no bytes of W.

    - up to 64 rows (decode): 64 rows and one compute warpgroup, eight stages, which keep at least
      64 KiB of W in flight for each SM. Strips of 64 columns where strips of 128 would leave SMs
      without work.
    - up to 128 rows: 128 rows and two compute warpgroups.
    - more: 256 x 128, an accumulator of 128 float32 registers a thread.
    """
    if cluster is None:
        cluster = smallest_cluster(gemm.t, gemm.experts, sm_count)
    rows = typical_rows(gemm.t, gemm.experts) / cluster
    items = min(gemm.experts, gemm.t) * -(-gemm.n // 128)
    tn = 64 if items < sm_count // cluster else 128
    if rows <= 64:
        return Config(tm=64, tn=tn, stages=8, cluster=cluster, sm_count=sm_count)
    if rows <= 128:
        return Config(tm=128, tn=tn, stages=6, warpgroups=2, cluster=cluster, sm_count=sm_count)
    return Config(tm=_TALLEST, stages=4, warpgroups=2, cluster=cluster, sm_count=sm_count)


def smallest_cluster(t: int, experts: int, sm_count: int = CLUSTERS[-1]) -> int:
    """Return the smallest cluster with which most experts' W is read once; the largest if none.

    A larger one would hold SMs that compute nothing.
    """
    rows = typical_rows(t, experts)
    fitting = [c for c in CLUSTERS if c <= sm_count]
    return next((c for c in fitting if c * _TALLEST >= rows), fitting[-1])
