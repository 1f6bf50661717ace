"""Pages of a reproduction."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined

from experiments.claims import Improvement, Row, totals
from experiments.claims.fidelity import brief, ours, printed, public
from experiments.figures.claims import CAPTION, draw_claims
from experiments.figures.style import look
from experiments.report import audit
from experiments.report.cards import GROUPS, Entry, cards_of, groups_of
from experiments.report.pictures import Picture, without_texts

__all__ = ["PAGES", "report_pages"]

PAGES: Final = ("index.html", "claims.html")


def report_pages(
    out: Path,
    entries: Sequence[Entry],
    rows: Sequence[Row],
    provenance: Mapping[str, Any],
    *,
    profile: str,
    improvements: Sequence[Improvement] = (),
) -> dict[str, str]:
    """Return each page's text, self-contained HTML, by file name."""
    cards = cards_of(out, entries, rows)
    summary = totals(rows)
    environment = Environment(
        loader=PackageLoader("experiments.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"printed": printed, "ours": ours, "brief": brief, "public": public}
    values = {
        "profile": profile,
        "commit": str((provenance.get("git") or {}).get("commit"))[:12],
        "papers": GROUPS,
        "totals": summary,
        "groups": groups_of(cards),
        "rows": rows,
        "figure_of": {name: card.entry.name for card in cards for name in card.entry.claims},
        "picture": _claims_picture(rows) if summary["out_of_sample"]["numbers"] else None,
        "picture_caption": CAPTION,
        "constants": audit.constants(),
        "nulls": audit.nulls(summary),
        "by_figure": audit.by_figure(rows),
        "improvements": audit.gains(improvements),
        "provenance": provenance,
    }
    return {name: environment.get_template(name).render(values) for name in PAGES}


def _claims_picture(rows: Sequence[Row]) -> Picture:
    buffer = io.BytesIO()
    with look(), mpl.rc_context({"svg.hashsalt": "c2c"}):
        draw_claims(rows).savefig(buffer, format="svg", metadata={"Date": None})
    svg, (_, _, width, height), _ = without_texts(buffer.getvalue())
    return Picture(svg=svg, width=width, height=height)
