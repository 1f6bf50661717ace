"""Parts of a fleet (equal chips), kinds of slices (equal costs)."""

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
      mig: MIG layout of each chip, or its name.
      constants: of the cost model on these chips.
      nodes: what they serve as nodes of a layout; None: all.
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
        """Name of the chip, with a device's count."""
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
          SettingError: an unknown layout, or instances that do not fit together.
        """
        placed(self.platform, self.mig)
        return slices(self.platform, self.mig)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceKind:
    """Slices of a fleet with equal step costs.

    Attributes:
      constants: of the cost model there.
      link_gbps: of each chip's link, 1e9 bytes/s.
      together: slices of a chip that has one of them.
    """

    slice: Slice
    platform: Platform
    constants: Constants
    link_gbps: float
    together: int
