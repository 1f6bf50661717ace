"""Tables of the page of claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from c2c.cost import load_constants
from experiments.claims import PAPERS, Improvement, Row
from experiments.claims.nulls import beside

__all__ = ["Table", "by_figure", "constants", "gains", "nulls"]

type Table = list[tuple[object, ...]]


def nulls(totals: Mapping[str, Any]) -> Table:
    """Return our results beside null models, by paper."""
    head = (
        "paper", "predicted numbers", "ours agree", "best constant of each unit", "no effect",
        "median error", "rank correlation",
    )  # fmt: skip
    return [
        head,
        *(
            (
                PAPERS[system], n["numbers"], n["agree"], n["constant_agree"],
                n["no_effect_agree"],
                "" if n["median_error"] is None else f"{n['median_error']:.0%}",
                ", ".join(f"{unit} {r:.2f}" for unit, r in n["rank_correlation"].items()),
            )
            for system, n in totals["null_models"].items()
        ),
    ]  # fmt: skip


def by_figure(rows: Sequence[Row]) -> Table:
    """Return counts of answered claims by figure."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.comparison is not None:
            groups.setdefault((row.claim.system, row.claim.id.split(".")[1]), []).append(row)
    table: Table = [
        (
            "paper", "figure", "predicted", "agree", "robust", "fragile", "untried",
            "best constant", "calibrated or given", "identities", "repeats",
        )
    ]  # fmt: skip
    for (system, figure), mine in groups.items():
        status = Counter(row.status for row in mine)
        stand = Counter(row.standing for row in mine)
        unseen = [row for row in mine if row.status == "out-of-sample"]
        counts = (
            len(unseen), sum(bool(row.agrees) for row in unseen), stand["robust"],
            stand["fragile"], stand["untried"], beside(unseen)["constant_agree"],
            status["in-sample"], status["identity"], status["repeat"],
        )  # fmt: skip
        table.append((PAPERS[system], figure, *(count or "" for count in counts)))
    return table


def gains(improvements: Sequence[Improvement]) -> Table:
    """Return our rules' gains over the paper's on equal requests."""
    head = ("quantity", "rule", "against", "ours", "theirs", "gain", "verdict")
    return [head, *(one.cells() for one in improvements)]


def constants() -> str:
    """Return a sentence on the cost model's constants and sources."""
    sources = load_constants().sources.values()
    fitted = [s for s in sources if s.kind == "fitted" and s.claims]
    claims = {name for s in fitted for name in s.claims}
    kinds = Counter(s.kind for s in sources)
    return (
        f"GH200's cost model has {len(sources)} constants: {len(fitted)} fitted to "
        f"{len(claims)} printed numbers, {kinds['fitted'] - len(fitted)} to public measurements, "
        f"{kinds['measured']} measured, {kinds['carried']} carried over from the H100's fits, "
        f"{kinds['datasheet']} of datasheets, {kinds['assumption']} assumed. Claims that a "
        "constant, a structure or a setting was chosen with in view are in-sample."
    )
