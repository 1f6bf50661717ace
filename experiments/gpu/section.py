"""A section of a run: cases, the module that measures them, and its share of the time."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass

from experiments.gpu.cases import Case, Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Cases and the module that measures them: `cases(scale)`, `measure(spec, context)`.

    `share` is the section's part of the time that is left of a call when the section begins.
    """

    name: str
    title: str
    module: str
    share: float
    checks: bool = False  # measures nothing: passes of a quick run count in a full run
    rehearses: bool = False  # for dry runs alone

    def cases(self, scale: Scale) -> list[Case]:
        """Return the cases, most informative first."""
        found: list[Case] = importlib.import_module(self.module).cases(scale)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Sections of one command of a lease, and a cap in seconds on each of their cases."""

    sections: tuple[str, ...]
    scale: Scale = "full"
    case_s: float = math.inf
