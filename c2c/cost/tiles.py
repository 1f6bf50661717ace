"""Tile shapes of HybridGEMM."""

from dataclasses import dataclass, field
from typing import Annotated

from c2c.errors import SettingError
from c2c.ranges import Count, OneOf, check_fields

__all__ = ["KernelTiles", "Tiles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Tile shape of one dataflow.

    `tm` x `tn` outputs a CTA, `tk` a stage's depth, `kc` of AsymGEMM's pinned weight tile,
    `stages` of the load pipeline.
    """

    tm: Count
    tn: Count
    tk: Count = 64
    kc: Count = 512
    stages: Count = 4

    def __post_init__(self) -> None:
        check_fields(self, "tiles")
        if self.kc % self.tk:
            raise SettingError("tiles.kc", self.kc, f"a multiple of tk={self.tk}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTiles:
    """Tile shapes of both dataflows of a hybrid kernel; defaults are the paper's.

    `cluster` CTAs along M share a weight tile of SymGEMM by multicast; 1 is the paper's. Source:
    tm=256 follows from C2CServe Fig. 4(b) (5.37 GB is 40 reads of W for M=10240).
    """

    cluster: Annotated[int, OneOf(1, 2, 4, 8, 16)] = 1
    sym: Tiles = field(default_factory=lambda: Tiles(tm=256, tn=128, tk=64, kc=64, stages=4))
    asym: Tiles = field(default_factory=lambda: Tiles(tm=256, tn=128, tk=64, kc=512, stages=2))

    def __post_init__(self) -> None:
        check_fields(self, "kernel")
