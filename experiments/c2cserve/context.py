"""Settings and results of a figure's module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa

from c2c.errors import SettingError
from c2c.hardware import LinkVariant
from experiments.claims import Improvement, Result, Takes

__all__ = ["PROFILES", "Computed", "Context"]

PROFILES = ("quick", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Settings of one figure.

    `seeds`: simulated figures run once a seed. `traces`: folder with the public traces as Parquet,
    None if there is none. `progress` takes (done, total).
    """

    profile: Literal["quick", "full"]
    link_variant: LinkVariant
    seeds: tuple[int, ...]
    traces: Path | None = None
    progress: Callable[[float, float], None] | None = None

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise SettingError("profile", self.profile, f"one of {', '.join(PROFILES)}")
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise SettingError("seeds", self.seeds, "distinct whole numbers, at least 0")

    @property
    def quick(self) -> bool:
        """Whether to compute the small version."""
        return self.profile == "quick"

    def link_text(self, gbps: float) -> str:
        """Return how a caption names the link variant."""
        return f"link variant '{self.link_variant}' ({gbps:g} GB/s, host to device)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """Tidy tables by name, answers to claims, and the caption with its assumptions.

    `report`: rows of a table that the report shows below the figure, the header first. `takes`: by
    claim, what it would take for ours to agree with it. `improvements`: what ours adds to the
    paper's rules, where a figure compares the two.
    """

    tables: Mapping[str, pa.Table]
    results: tuple[Result, ...]
    caption: str
    report: tuple[tuple[str, ...], ...] = ()
    takes: Mapping[str, Takes] = field(default_factory=dict)
    improvements: tuple[Improvement, ...] = ()
