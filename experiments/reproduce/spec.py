"""A figure of the catalog: its computation, its drawing, the packages its result depends on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.c2cserve.context import PROFILES, Computed, Context

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from experiments.figures.style import Tables

__all__ = ["MODEL", "OURS", "SIMULATOR", "FigureSpec"]

MODEL = ("c2c.hardware", "c2c.models", "c2c.cost")
SIMULATOR = (
    *MODEL,
    "c2c.workloads",
    "c2c.policies",
    "c2c.serving",
    "c2c.simulator",
    "c2c.metrics",
    "c2c.config",
)
# Whole packages: a figure's module may use another one's, and most figures take under a minute.
OURS = (
    "experiments.c2cserve",
    "experiments.cocoserve",
    "experiments.medusa",
    "experiments.tessera",
    "experiments.weaver",
    "experiments.figures",
    "experiments.claims",
    "experiments.sensitivity",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSpec:
    """A figure: `compute` makes tidy tables, `draw` makes the picture of them.

    `packages`: whose source the result depends on, beside `OURS`. `traces`: files of the
    traces' folder it reads where they are at hand. `profiles`: of those "all" means it in.
    """

    name: str
    title: str
    compute: Callable[[Context], Computed]
    draw: Callable[[Tables, str], Figure]
    packages: tuple[str, ...] = MODEL
    traces: tuple[str, ...] = ()
    profiles: tuple[str, ...] = PROFILES

    @property
    def sources(self) -> tuple[str, ...]:
        """Packages that the content key covers."""
        return (*self.packages, *OURS)
