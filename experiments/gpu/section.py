"""A section of a run: cases, the module that measures them, and its share of the time."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass

from experiments.gpu.cases import Case, Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A list of cases and the module that measures them: `cases(scale)`, `measure(spec, context)`.

    `share` is the part of a call that this one may take, of what is left when it begins.
    """

    name: str
    title: str
    module: str
    share: float
    checks: bool = False  # measures nothing: what passed quickly need not run again
    rehearses: bool = False  # measures nothing anywhere: for dry runs alone

    def cases(self, scale: Scale) -> list[Case]:
        """Return the cases, most informative first."""
        found: list[Case] = importlib.import_module(self.module).cases(scale)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Sections for one command of a lease, and seconds that a case of them may take at most."""

    sections: tuple[str, ...]
    scale: Scale = "full"
    case_s: float = math.inf
