"""Summary of a reproduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.claims.classes import class_of
from experiments.claims.fidelity import Row, ours, printed, totals
from experiments.claims.load import PAPERS

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["abstracts", "print_summary"]


def abstracts(rows: Sequence[Row]) -> dict[str, str]:
    """Return the abstracts' claims with a result, as Markdown."""
    tables: dict[str, list[str]] = {}
    for row in rows:
        if row.claim.where.startswith("Abstract") and row.comparison is not None:
            entry = class_of(row.claim.id)
            sources = [class_of(name) for name in entry.of] if entry else []
            is_fitted = any(source and source.name == "calibrates" for source in sources)
            verdict = "agrees" if row.agrees else "contradicts"
            verdict += ", in-sample" * is_fitted
            cells = row.claim.says.rstrip("."), printed(row.claim), ours(row), verdict
            table = tables.setdefault(row.claim.system, list(_ABSTRACT_HEAD))
            table.append(f"| {' | '.join(cells)} |")
    return {system: "\n".join(table) for system, table in tables.items()}


_ABSTRACT_HEAD = ("| the abstract | printed | ours | |", "| --- | --- | --- | --- |")


def print_summary(rows: Sequence[Row], console: Console) -> None:
    """Print agreeing claims, by paper and in all."""
    from rich.table import Table

    answered = [row for row in rows if row.comparison is not None]
    if not answered:
        console.print("no figure here answers a claim of a paper")
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("paper", no_wrap=True)
    for name in ("predictions within 20 %", "trends as printed", "fitted or given"):
        table.add_column(name, justify="right", no_wrap=True)
    papers = list(dict.fromkeys(row.claim.system for row in answered))
    for paper in [*papers, "all"] if len(papers) > 1 else papers:
        paper_rows = [row for row in answered if paper in ("all", row.claim.system)]
        counts = totals(paper_rows)["out_of_sample"]
        agreements = [row.agrees for row in paper_rows if row.status != "out-of-sample"]
        table.add_row(
            PAPERS.get(paper, paper),
            f"{counts['numbers_within_20']} of {counts['numbers']}",
            f"{counts['trends_agree']} of {counts['trends']}",
            f"{sum(map(bool, agreements))} of {len(agreements)}",
        )
    console.print(table)
    rest = sum(row.status == "not-yet" for row in rows)
    if rest:
        console.print(f"{rest} more claims have no result here", highlight=False)
