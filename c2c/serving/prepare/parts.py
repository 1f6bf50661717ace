"""Parts of a fleet (equal chips), changes of their layouts, and kinds of slices (equal costs)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from c2c.cost import Constants
from c2c.errors import SettingError
from c2c.hardware import MigConfig, Platform, Slice
from c2c.ranges import Count, check_fields

__all__ = ["FleetPart", "LayoutChange", "SliceKind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPart:
    """Equal chips of a fleet.

    Attributes:
      platform: chip, host and the link between them.
      mig: MIG layout of each chip, or its name in `conf/mig`.
      count: number of chips.
      constants: cost-model constants of these chips.
    """

    platform: Platform
    mig: MigConfig | str
    count: Count
    constants: Constants

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChange:
    """A change of every chip's MIG layout during a run.

    Attributes:
      at_s: time at which the first chip begins.
      mig: new layout, or its name in `conf/mig`.
      drain: whether requests that compute on a removed slice end there; else they are set aside at
        the next step boundary and recomputed elsewhere.
      stagger_s: delay of each further chip after the one before.
    """

    at_s: float
    mig: MigConfig | str
    drain: bool = True
    stagger_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("at_s", "stagger_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise SettingError(
                    f"mig_changes.{name}", getattr(self, name), "seconds, at least 0"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceKind:
    """Slices of a fleet with equal step costs.

    Attributes:
      slice: resources of each slice.
      platform: platform of their chips.
      constants: cost-model constants there.
      link_gbps: rate of each chip's link, 1e9 bytes/s.
      together: largest number of slices of any layout that has one of them.
    """

    slice: Slice
    platform: Platform
    constants: Constants
    link_gbps: float
    together: int
