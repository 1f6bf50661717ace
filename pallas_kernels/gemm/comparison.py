"""Which dataflow should win where: predicted times over rows and SMs, to compare with measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pallas_kernels.counting import round_up
from pallas_kernels.gemm.heuristics import choice
from pallas_kernels.gemm.machine import Machine
from pallas_kernels.gemm.specs import MODEL_PROJECTIONS, ROW_MULTIPLE, ROWS, Gemm
from pallas_kernels.hopper import CLUSTERS

SLICES: tuple[int, ...] = (16, 28, 56, 132)
"""SMs of the slices in the paper's Table 1, and of the whole GPU."""

_EQUAL = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The best of the pure dataflows for one number of rows and SMs, and the best hybrid."""

    m: int
    sm_count: int
    times_s: Mapping[str, float]  # of each dataflow with its best tiles
    hybrid_alpha: float
    hybrid_cluster: int
    hybrid_s: float

    @property
    def name(self) -> str:
        """The simplest dataflow within 2% of the fastest, in the order of `times_s`."""
        limit = (1 + _EQUAL) * min(self.times_s.values())
        return next(name for name, time_s in self.times_s.items() if time_s <= limit)

    @property
    def all_equal(self) -> bool:
        """Whether all dataflows are within 2% of the fastest."""
        return max(self.times_s.values()) <= (1 + _EQUAL) * min(self.times_s.values())


def winners(
    machine: Machine,
    ms: Sequence[int] = ROWS,
    sms: Sequence[int] = SLICES,
    *,
    shape: tuple[int, int] = MODEL_PROJECTIONS["c2cserve-fig4"][0],
    out_dtype: str = "float32",
) -> tuple[Winner, ...]:
    """Return the winner for each number of rows and of SMs.

    Args:
      machine: its link and HBM are the launch's alone, however few SMs it has (`sm_limit`).
      ms: rows.
      sms: SMs.
      shape: (K, N).
      out_dtype: of O, in which AsymGEMM adds.
    """
    return tuple(
        _winner(
            machine,
            Gemm(m=round_up(m, ROW_MULTIPLE), k=shape[0], n=shape[1], out_dtype=out_dtype),
            m,
            sm_count,
        )
        for sm_count in sms
        for m in ms
    )


def _winner(machine: Machine, gemm: Gemm, m: int, sm_count: int) -> Winner:
    part = machine.with_sms(sm_count)
    times = {
        f"sym cm{cluster}": choice(gemm, part, cluster=cluster, alpha=1.0).time_s
        for cluster in CLUSTERS
        if cluster <= sm_count
    }
    times["asym"] = choice(gemm, part, cluster=1, alpha=0.0).time_s
    best = choice(gemm, part)
    return Winner(
        m=m,
        sm_count=sm_count,
        times_s=MappingProxyType(times),
        hybrid_alpha=best.alpha,
        hybrid_cluster=best.config.cluster,
        hybrid_s=best.time_s,
    )
