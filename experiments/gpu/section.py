"""A section of a run: cases, the module that measures them, and its share of the time."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from experiments.gpu.cases import Case, Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A list of cases and the module that measures them: `cases(scale)`, `measure(spec, context)`.

    `share` is the part of a run of all sections that this one may take, of what is left when it
    begins. `survey` is the scale at which it runs there, if not in full.
    """

    name: str
    title: str
    module: str
    share: float
    survey: Scale | None = None
    checks: bool = False  # measures nothing: what passed quickly need not run again
    asked: bool = False  # runs only if it is named
    rehearses: bool = False  # measures nothing anywhere: for dry runs alone

    def cases(self, scale: Scale) -> list[Case]:
        """Return the cases, most informative first."""
        found: list[Case] = importlib.import_module(self.module).cases(scale)
        return found
