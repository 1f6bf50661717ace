"""Settings for failures and repairs of chips."""

from __future__ import annotations

import math
from dataclasses import dataclass

from c2c.errors import SettingError

__all__ = ["Failure", "Failures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A scheduled failure of a chip, which serves again `repair_s` later."""

    at_s: float
    chip: int
    repair_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failures of chips, which lose their HBM and return; host memory survives.

    Attributes:
      mtbf_hours: mean time in service until a chip fails, exponential; inf: no failure is drawn.
      repair_s: mean time until it serves again, exponential.
      events: scheduled failures; those of a chip that is lost already change nothing.
      host_chips: number of neighbouring chips of a host; above 0, hosts fail in place of chips and
        lose their memory. A host's chips belong to one part of a fleet. A scheduled failure is that
        of the chip's host.
    """

    mtbf_hours: float = math.inf
    repair_s: float = 3600.0
    events: tuple[Failure, ...] = ()
    host_chips: int = 0

    def __post_init__(self) -> None:
        if not self.mtbf_hours > 0.0:
            raise SettingError("failures.mtbf_hours", self.mtbf_hours, "hours above 0, or null")
        if not 0.0 < self.repair_s < math.inf:
            raise SettingError("failures.repair_s", self.repair_s, "seconds above 0")
        if self.host_chips < 0:
            raise SettingError("failures.host_chips", self.host_chips, "a whole number, at least 0")
        for k, event in enumerate(self.events):
            where = f"failures.events[{k}]"
            if not 0.0 <= event.at_s < math.inf:
                raise SettingError(f"{where}.at_s", event.at_s, "seconds, at least 0")
            if not 0.0 < event.repair_s < math.inf:
                raise SettingError(f"{where}.repair_s", event.repair_s, "seconds above 0")

    @property
    def is_on(self) -> bool:
        """True where any chip may fail."""
        return self.mtbf_hours < math.inf or len(self.events) > 0
