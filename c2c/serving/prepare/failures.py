"""Settings for failures and repairs of chips."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from c2c.ranges import AboveZero, FromZero, In, Index, check_fields

__all__ = ["Failure", "Failures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A scheduled failure of a chip, for `repair_s`."""

    at_s: FromZero
    chip: int
    repair_s: AboveZero


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failures of chips, which lose their HBM and return; host memory survives.

    Attributes:
      mtbf_hours: mean time until a chip fails, exponential; inf: none is drawn.
      repair_s: mean time until it serves again, exponential.
      events: scheduled failures; those of lost chips change nothing.
      host_chips: neighbouring chips of a host, of one part of a fleet; above 0, hosts fail in place
        of chips and lose their memory.
    """

    mtbf_hours: Annotated[float, In("(0, inf]")] = math.inf
    repair_s: AboveZero = 3600.0
    events: tuple[Failure, ...] = ()
    host_chips: Index = 0

    def __post_init__(self) -> None:
        check_fields(self, "failures")
        for k, event in enumerate(self.events):
            check_fields(event, f"failures.events[{k}]")

    @property
    def is_on(self) -> bool:
        """True where any chip may fail."""
        return self.mtbf_hours < math.inf or len(self.events) > 0
