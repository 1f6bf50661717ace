"""Figures on the page, by paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from experiments.claims import PAPERS, Row
from experiments.report.pictures import Picture, picture_of

__all__ = ["GROUPS", "Card", "Entry", "cards_of", "groups_of"]

GROUPS: Final = {**PAPERS, "beyond": "Beyond the papers"}
_KINDS: Final = ("svg", "pdf", "png", "parquet")

Badge = Literal["agrees", "mixed", "misses", "no prediction", "ours"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Figure of the report: texts of registration and figure.json.

    `paper`: system of the paper, or "". `report`: table, the header first.
    """

    name: str
    title: str
    caption: str
    paper: str = ""
    finding: str = ""
    experiment: Mapping[str, Any] | None = None
    assumptions: Sequence[str] = ()
    report: Sequence[Sequence[str]] = ()
    claims: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Figure with picture, files as (kind, path) and claims, predictions first."""

    entry: Entry
    rows: tuple[Row, ...]
    picture: Picture
    files: tuple[tuple[str, str], ...]

    @property
    def group(self) -> str:
        """System whose paper has the figure; "beyond" for others."""
        return self.entry.paper if self.entry.paper in PAPERS else "beyond"

    @property
    def title(self) -> str:
        """Title without the paper's name, which the group has."""
        title = self.entry.title.removeprefix(f"{GROUPS[self.group]}, ")
        return title[:1].upper() + title[1:]

    @property
    def predictions(self) -> tuple[Row, ...]:
        """Claims that count: nothing was chosen by the printed value."""
        return tuple(row for row in self.rows if row.status == "out-of-sample")

    @property
    def others(self) -> tuple[Row, ...]:
        """Claims that do not count: inputs, arithmetic, repeats."""
        return tuple(row for row in self.rows if row.status != "out-of-sample")

    @property
    def agreeing(self) -> int:
        """Number of predictions that agree."""
        return sum(bool(row.agrees) for row in self.predictions)

    @property
    def badge(self) -> Badge:
        """Verdict on the predictions."""
        if self.group == "beyond":
            return "ours"
        if not self.predictions:
            return "no prediction"
        if self.agreeing in (0, len(self.predictions)):
            return "agrees" if self.agreeing else "misses"
        return "mixed"


def cards_of(out: Path, entries: Sequence[Entry], rows: Sequence[Row]) -> list[Card]:
    """Return a card a figure, with answered claims."""
    by_id = {row.claim.id: row for row in rows if row.result is not None}
    return [
        Card(
            entry=entry,
            rows=tuple(by_id[name] for name in dict.fromkeys(entry.claims)),
            picture=picture_of(out / entry.name, entry.name),
            files=tuple(
                (path.name if kind == "parquet" else kind.upper(), f"{entry.name}/{path.name}")
                for kind in _KINDS
                for path in sorted((out / entry.name).glob(f"*.{kind}"))
            ),
        )
        for entry in entries
    ]


def groups_of(cards: Sequence[Card]) -> Mapping[str, list[Card]]:
    """Return the cards by group, in order."""
    groups = {name: [c for c in cards if c.group == name] for name in GROUPS}
    return {name: mine for name, mine in groups.items() if mine}
