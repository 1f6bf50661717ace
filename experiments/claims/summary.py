"""Summary of a reproduction: one line a paper with its counts, and one for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.claims.fidelity import Row, totals
from experiments.claims.load import PAPERS

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_summary"]


def print_summary(rows: Sequence[Row], console: Console) -> None:
    """Print how many claims agree: for each paper with a result, then for all papers."""
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
        found = [row for row in answered if paper in ("all", row.claim.system)]
        counts = totals(found)["out_of_sample"]
        given = [row.agrees for row in found if row.status != "out-of-sample"]
        table.add_row(
            PAPERS.get(paper, paper),
            f"{counts['numbers_within_20']} of {counts['numbers']}",
            f"{counts['trends_agree']} of {counts['trends']}",
            f"{sum(map(bool, given))} of {len(given)}",
        )
    console.print(table)
    left = sum(row.status == "not-yet" for row in rows)
    if left:
        console.print(f"{left} more claims have no result here", highlight=False)
