"""Parts of a fleet (equal chips) and kinds of slices (equal costs)."""

from __future__ import annotations

from dataclasses import dataclass

from c2c.cost import Constants
from c2c.hardware import MigConfig, Platform, Slice, placed, slices
from c2c.ranges import Count, check_fields
from c2c.serving.prepare.lanes import NodeKind

__all__ = ["FleetPart", "SliceKind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPart:
    """Equal chips of a fleet.

    Attributes:
      platform: chip, host and the link between them.
      mig: MIG layout of each chip, or its name.
      count: number of chips.
      constants: cost-model constants of these chips.
      nodes: what they serve as nodes of a layout; None: all of it.
    """

    platform: Platform
    mig: MigConfig | str
    count: Count
    constants: Constants
    nodes: NodeKind | None = None

    def __post_init__(self) -> None:
        check_fields(self, "fleet.parts")

    @property
    def chip_name(self) -> str:
        """Name of the chip, with the number of chips if several are one device."""
        ranks = self.platform.ranks
        return self.platform.name if ranks is None else f"{ranks.count} {self.platform.name}"

    @property
    def layout(self) -> str:
        """Name of the layout."""
        return self.mig if isinstance(self.mig, str) else self.mig.name

    @property
    def slices(self) -> tuple[Slice, ...]:
        """Slices of each chip.

        Raises:
          SettingError: a layout that the chip lacks, or instances that do not fit together.
        """
        placed(self.platform, self.mig)
        return slices(self.platform, self.mig)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceKind:
    """Slices of a fleet with equal step costs.

    Attributes:
      slice: resources of each slice.
      platform: platform of their chips.
      constants: cost-model constants there.
      link_gbps: rate of each chip's link, 1e9 bytes/s.
      together: number of slices of a chip that has one of them.
    """

    slice: Slice
    platform: Platform
    constants: Constants
    link_gbps: float
    together: int
