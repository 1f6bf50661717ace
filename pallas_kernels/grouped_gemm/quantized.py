"""One grouped GEMM over quantised experts: its static description, and the tiles to use."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pallas_kernels.counting import round_up
from pallas_kernels.grouped_gemm.heuristics import smallest_cluster, typical_rows
from pallas_kernels.grouped_gemm.specs import ROW_MULTIPLE
from pallas_kernels.hopper import expect
from pallas_kernels.quantized_gemm import Config, QuantizedGemm
from pallas_kernels.quantized_gemm import choose as choose_one
from pallas_kernels.quantized_gemm.config import ROW_TILES

_MAX_SIZE = 2**31 - 1  # the kernel counts in int32


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedGroupedGemm:
    """O[rows of e] = X[rows of e] W[e] for every expert e, with quantised W.

    `expert` is the GEMM of one expert, as the kernel sees it: all rows of X, rounded up, times one
    matrix. `layers` is the leading size of a stacked W, or None for a W of one layer.
    """

    t: int  # rows of X: tokens times experts for each token
    experts: int
    expert: QuantizedGemm
    layers: int | None = None

    def __post_init__(self) -> None:
        expect(0 < self.t <= _MAX_SIZE, "t", self.t, "a number above 0 and below 2**31")
        rows = round_up(self.t, ROW_MULTIPLE)
        expect(self.expert.m == rows, "expert.m", self.expert.m, f"t={self.t} rounded up: {rows}")
        expect(
            self.experts >= 1 and self.t * self.experts <= _MAX_SIZE,
            "experts",
            self.experts,
            f"a number above 0 that makes less than 2**31 with t={self.t} rows",
        )
        layers = self.layers
        expect(layers is None or layers >= 1, "layers", layers, "a number from 1 up")
        expect(self.expert.layers is None, "expert.layers", self.expert.layers, "None")

    @property
    def w_shape(self) -> tuple[int, ...]:
        """The shape of the stored W, with the layers if it is stacked."""
        return self._stacked(self.expert.w_shape)

    @property
    def scales_shape(self) -> tuple[int, ...]:
        """The shape of the scales."""
        return self._stacked(self.expert.scales_shape)

    def _stacked(self, matrix: tuple[int, ...]) -> tuple[int, ...]:
        one = (self.experts, *matrix)
        return one if self.layers is None else (self.layers, *one)


def choose_quantized(
    gemm: QuantizedGroupedGemm, *, sm_count: int, cluster: int | None = 1
) -> Config:
    """Return a configuration for `gemm` on `sm_count` SMs; unmeasured, as `heuristics.choose`.

    That of one GEMM with the rows to expect of an expert and the strips of all experts that can
    have rows. A tile may have 8 rows here, rows being the narrow side of wgmma.

    Raises:
      ValueError: `cluster` is not launchable.
    """
    if cluster is None:
        cluster = smallest_cluster(gemm.t, gemm.experts, sm_count)
    rows = min(typical_rows(gemm.t, gemm.experts), cluster * max(ROW_TILES))
    columns = min(gemm.expert.n * min(gemm.experts, gemm.t), _MAX_SIZE // 64 * 64)
    alike = replace(gemm.expert, m=round_up(rows, ROW_MULTIPLE), n=columns)
    return choose_one(alike, sm_count=sm_count, cluster=cluster)
