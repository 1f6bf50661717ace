"""The parts of a fleet: chips that are alike, and the slices that cost the same."""

from __future__ import annotations

from dataclasses import dataclass

from c2c.cost import Constants
from c2c.errors import SettingError
from c2c.hardware import MigConfig, Platform, Slice

__all__ = ["FleetPart", "SliceKind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPart:
    """Chips of a fleet that are alike.

    Attributes:
      platform: each chip, with its host and the link between them.
      mig: the layout of each, or its name in `conf/mig`.
      count: how many there are.
      constants: of the cost model on these chips.
    """

    platform: Platform
    mig: MigConfig | str
    count: int
    constants: Constants

    def __post_init__(self) -> None:
        if self.count < 1:
            raise SettingError("fleet.parts.count", self.count, "a whole number above 0")

    @property
    def chip_name(self) -> str:
        """The chip's name, with how many of them are one device where several are."""
        ranks = self.platform.ranks
        return self.platform.name if ranks is None else f"{ranks.count} {self.platform.name}"

    @property
    def layout(self) -> str:
        """The layout's name."""
        return self.mig if isinstance(self.mig, str) else self.mig.name


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceKind:
    """Slices of a fleet on which every step costs the same.

    Attributes:
      slice: what each may use.
      platform: of their chips.
      constants: of the cost model there.
      link_gbps: what the link of each chip carries.
      together: the most slices of a layout that has one of them.
    """

    slice: Slice
    platform: Platform
    constants: Constants
    link_gbps: float
    together: int
