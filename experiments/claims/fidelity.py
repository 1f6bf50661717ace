"""Fidelity table: every claim beside our result."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa

from experiments.claims.beside import members_of_orders, reasons_of_misses
from experiments.claims.classes import ClassName, class_of, reclassified, relabelled
from experiments.claims.compare import Comparison, Result, compare
from experiments.claims.load import Claim, claim, explanations
from experiments.claims.nulls import beside
from experiments.claims.public import Interval, intervals_beside, public_interval
from experiments.claims.robust import Standing, standing

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Row",
    "fidelity_rows",
    "fidelity_table",
    "print_fidelity",
    "totals",
]

Status = Literal[
    "in-sample", "out-of-sample", "identity", "repeat", "explained", "not-yet", "not-applicable"
]
# Status -> its details' key in the totals.
ANSWERED: dict[Status, str] = {
    "out-of-sample": "out_of_sample",
    "in-sample": "in_sample",
    "identity": "identities",
    "repeat": "repeats",
}
# Class of a claim -> its status, independent of its figure; for "predicted" the figure decides.
OF_CLASS: dict[ClassName, Status] = {
    "input": "in-sample",
    "unprinted": "in-sample",
    "rule": "in-sample",
    "calibrates": "in-sample",
    "identity": "identity",
    "repeat_of": "repeat",
    "follows_from": "repeat",
    "not_comparable": "not-applicable",
}
GIVEN: tuple[ClassName, ...] = ("input", "unprinted")  # nothing to answer
# Change that mends a missed claim, in words, and the smallest factor of one number that suffices.
STATUSES: tuple[Status, ...] = (*ANSWERED, "explained", "not-yet", "not-applicable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A claim, our first result, if any, and their comparison."""

    claim: Claim
    status: Status
    result: Result | None
    comparison: Comparison | None
    why: str = ""  # reason for a miss, or for having no result
    missing_members: tuple[str, ...] = ()  # members of an order that do not agree

    @property
    def standing(self) -> Standing | None:
        """Robustness of an agreeing prediction under other readings, if any."""
        if self.result is None or self.status != "out-of-sample" or not self.agrees:
            return None
        return standing(self.result)

    @property
    def public(self) -> Interval | None:
        """Interval of a prediction over public engines, if any."""
        if self.status != "out-of-sample" or not self.comparison or self.comparison.ratio is None:
            return None
        return public_interval(self.claim, self.result)

    @property
    def agrees(self) -> bool | None:
        """True if our result, or an order's members, agree; None without a result."""
        if self.comparison is None:
            return None
        return self.comparison.agrees and not self.missing_members

    @property
    def is_miss(self) -> bool:
        """True if an out-of-sample result does not agree."""
        return self.status == "out-of-sample" and self.agrees is False

    @property
    def note(self) -> str:
        """Note of result or reason, and against an uncounted agreement."""
        parts = [self.result.note if self.result else self.why]
        if self.comparison is not None and self.comparison.in_band:
            parts.append("Not counted: it does not hold with every seed.")
        if self.comparison is not None and self.comparison.apart:
            parts.append(f"Not counted: {', '.join(self.comparison.apart)} alone do not agree.")
        if self.missing_members:
            parts.append(f"Not counted: {', '.join(self.missing_members)} do not agree.")
        return " ".join(part for part in parts if part)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        c, r, comparison = self.claim, self.result, self.comparison
        return {
            "id": c.id,
            "system": c.system,
            "where": c.where,
            "says": c.says,
            "kind": c.kind,
            "published": c.value,
            "qualifier": c.qualifier,
            "unit": c.unit,
            "ours": r.ours if r else None,
            "ratio": comparison.ratio if comparison else None,
            "within_20": comparison.within_20 if comparison else None,
            "agrees": self.agrees,
            "status": self.status,
            "standing": self.standing,
            "by_reading": dict(self.result.by_reading) if self.result else {},
            "public_low": list(self.public.low) if self.public else None,
            "public_high": list(self.public.high) if self.public else None,
            "inside_public": self.public.is_inside if self.public else None,
            "by_seed": list(r.by_seed) if r else [],
            "link_variant": r.link_variant if r else "",
            "note": self.note,
            "why_missed": self.why if self.is_miss else "",
        }


_WIDTH_WITH_SAMPLE = 110  # characters of a terminal


def fidelity_rows(
    claims: Mapping[str, Claim],
    results: Sequence[Result],
    in_sample: AbstractSet[str],
) -> list[Row]:
    """Return one row per claim, in the order of the claims."""
    first: dict[str, Result] = {}
    explained, reasons, orders = explanations(), reasons_of_misses(), members_of_orders()
    for result in results:
        if result.claim_id not in claims:
            claim(result.claim_id)  # raises, naming the closest id
        first.setdefault(result.claim_id, result)
    compared = {name: compare(claims[name], first_result) for name, first_result in first.items()}
    rows = []
    for item in claims.values():
        first_result = first.get(item.id)
        entry = class_of(item.id)
        if first_result is not None:
            status: Status = "in-sample" if item.id in in_sample else first_result.sample
            status = OF_CLASS.get(entry.name, status) if entry else status
        elif item.id in explained:
            status = "explained"
        elif entry.name in GIVEN if entry else item.is_informational:
            status = "not-applicable"
        else:
            status = "not-yet"
        comparison = compared.get(item.id)
        missing: tuple[str, ...] = ()
        if comparison is not None and comparison.agrees:
            members = orders.get(item.id, ())
            missing = tuple(m for m in members if m not in compared or not compared[m].agrees)
        missed = comparison is not None and (not comparison.agrees or bool(missing))
        why = reasons.get(item.id, "") if missed else ""
        rows.append(
            Row(
                claim=item,
                status=status,
                result=first_result,
                comparison=comparison,
                why=explained[item.id].why if status == "explained" else why,
                missing_members=missing,
            )
        )
    return rows


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """Return counts by status, agreements, null models and misses."""
    counted = Counter(row.status for row in rows)
    out: dict[str, Any] = {"claims": len(rows), **{s: counted[s] for s in STATUSES}}
    for status, key in ANSWERED.items():
        out[key] = _counts([r for r in rows if r.status == status])
    unseen = [r for r in rows if r.status == "out-of-sample"]
    out["out_of_sample_by_system"] = {
        system: _counts([r for r in unseen if r.claim.system == system])
        for system in dict.fromkeys(r.claim.system for r in unseen)
    }
    out["null_models"] = {
        system: beside([r for r in unseen if r.claim.system == system])
        for system in out["out_of_sample_by_system"]
    }
    intervals = {
        system: intervals_beside([r for r in unseen if r.claim.system == system])
        for system in out["out_of_sample_by_system"]
    }
    out["public_intervals"] = {
        system: interval for system, interval in intervals.items() if interval
    }
    out["reclassified"] = len(reclassified()) + len(relabelled())
    misses = [r for r in rows if r.is_miss]
    out["misses"] = {
        "all": len(misses),
        "with_a_reason": sum(bool(r.why) for r in misses),
        "without_a_reason": [r.claim.id for r in misses if not r.why],
        # stale reasons, unless they are of another profile or of runs without the public traces
        "reasons_of_hits": [
            r.claim.id for r in unseen if r.agrees and r.claim.id in reasons_of_misses()
        ],
    }
    return out


def _counts(rows: Sequence[Row]) -> dict[str, int]:
    pairs = [(r.comparison, r.agrees) for r in rows if r.comparison]
    stand = Counter(row.standing for row in rows)
    numbers = [(c, agrees) for c, agrees in pairs if c.ratio is not None]
    trends = [agrees for c, agrees in pairs if c.ratio is None]
    return {
        "numbers": len(numbers),
        "numbers_within_20": sum(bool(c.within_20) for c, _ in numbers),
        "numbers_agree": sum(bool(agrees) for _, agrees in numbers),
        "trends": len(trends),
        "trends_agree": sum(map(bool, trends)),
        **{name: stand[name] for name in get_args(Standing)},
    }


def fidelity_table(rows: Sequence[Row]) -> pa.Table:
    """Return the rows as a table, odd values as JSON."""
    plain = [row.as_dict() for row in rows]
    for row in plain:
        for name in ("published", "ours", "by_seed", "by_reading"):
            row[name] = None if row[name] is None else json.dumps(row[name], ensure_ascii=False)
    return pa.Table.from_pylist(
        plain,
        schema=pa.schema(
            [
                *((n, pa.string()) for n in ("id", "system", "where", "says", "kind")),
                *((n, pa.string()) for n in ("published", "qualifier", "unit", "ours")),
                ("ratio", pa.float64()),
                ("within_20", pa.bool_()),
                ("agrees", pa.bool_()),
                *((n, pa.string()) for n in ("status", "standing", "by_reading")),
                *((n, pa.list_(pa.float64())) for n in ("public_low", "public_high")),
                ("inside_public", pa.bool_()),
                *((n, pa.string()) for n in ("by_seed", "link_variant", "note")),
                ("why_missed", pa.string()),
            ]
        ),
    )


def print_fidelity(rows: Sequence[Row], console: Console, *, everything: bool = False) -> None:
    """Print claims with a result, or `everything`, and totals."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    colour = {"out-of-sample": "green", "in-sample": "cyan"}

    columns = ["claim", "published", "ours", "ratio", "agrees", "sample"]
    if console.width < _WIDTH_WITH_SAMPLE:
        columns.remove("sample")
    table = Table(title="Claim by claim", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        wraps = name in ("published", "ours")
        justify: Literal["left", "right"] = "right" if name == "ratio" else "left"
        table.add_column(
            name, no_wrap=not wraps, overflow="fold", justify=justify,
            max_width=40 if wraps else None,
        )  # fmt: skip
    for row in rows:
        if row.comparison is None and not everything:
            continue
        plain = row.as_dict()
        agrees = {True: "yes", False: "[red]no[/red]", None: ""}[plain["agrees"]]
        status = colour.get(row.status)
        cells = (
            row.claim.id,
            escape(printed(row.claim)),
            "" if plain["ours"] is None else escape(brief(plain["ours"])),
            "" if plain["ratio"] is None else f"{plain['ratio']:.2f}",
            agrees,
            f"[{status}]{row.status}[/{status}]" if status else row.status,
        )
        table.add_row(*cells[: len(columns)])
    console.print(table)
    sums = totals(rows)
    counts: dict[str, dict[str, int]] = {s: sums[key] for s, key in ANSWERED.items()}
    of_systems = sums["out_of_sample_by_system"]
    if len(of_systems) > 1:
        counts |= {f"out-of-sample, {system}": t for system, t in of_systems.items()}
    for status, t in counts.items():
        stood = ", ".join(f"{t[name]} {name}" for name in get_args(Standing))
        console.print(
            f"{status}: {t['numbers_within_20']} of {t['numbers']} numbers within 20%, "
            f"{t['trends_agree']} of {t['trends']} trends the right way"
            + (f"; {stood} under other readings" if status.startswith("out-of") else "")
        )
    for system, n in sums["null_models"].items():
        ranks = ", ".join(f"{unit} {r:.2f}" for unit, r in n["rank_correlation"].items())
        console.print(
            f"null models, {system}: {n['agree']} of {n['numbers']} numbers agree, "
            f"{n['constant_agree']} with the best constant of each unit, {n['no_effect_agree']} "
            f"with no effect; median error {n['median_error'] or 0.0:.0%}; "
            f"rank correlation {ranks or 'of too few numbers'}"
        )
    for system, n in sums["public_intervals"].items():
        console.print(
            f"public intervals, {system}: {n['inside']} of {n['numbers']} numbers lie between our "
            f"lowest and highest value over public engines and schedulers, {n['by_chance']} would "
            "by chance"
        )
    console.print(
        f"{sums['claims']} claims: {sums['out-of-sample']} out-of-sample, "
        f"{sums['in-sample']} in-sample, {sums['identity']} identities (arithmetic of inputs), "
        f"{sums['repeat']} repeats of others, "
        f"{sums['explained']} explained, {sums['not-yet']} not yet, "
        f"{sums['not-applicable']} not applicable (constants of the papers' setups); "
        f"reclassified after a result: {sums['reclassified']}"
    )
    for key, label in (
        ("without_a_reason", "missed without a reason in misses.yaml"),
        ("reasons_of_hits", "a reason in misses.yaml, but ours agrees here"),
    ):
        if named := sums["misses"][key]:
            console.print(f"{label}: {', '.join(named)}", highlight=False)


def brief(value: Any) -> str:
    """Return a value as a short text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{str(k).replace('_', ' ')}: {brief(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        if len(value) > 4:
            return f"{brief(value[0])} .. {brief(value[-1])}"
        if len(value) == 2 and not any(isinstance(v, str) for v in value):
            return f"{brief(value[0])} to {brief(value[1])}"
        return "[" + ", ".join(brief(v) for v in value) + "]"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float | int):
        return f"{value:.4g}" if abs(value) < 9999.5 else f"{value:,.0f}"
    return str(value)


def _amount(value: Any, item: Claim) -> str:
    """Return a value with the claim's unit, if it has one."""
    signs = {"percent": " %", "x": "×", **dict.fromkeys(("mixed", "relation", "rule", "bool"), "")}
    text = brief(value)
    return text + signs.get(item.unit, f" {item.unit}") if text[-1:] in "0123456789]" else text


def printed(item: Claim) -> str:
    """Return a claim's value as text, with qualifier and unit."""
    return f"{item.qualifier.replace('_', ' ')} {_amount(item.value, item)}".strip()


def public(row: Row) -> str:
    """Return a row's interval over public engines as text, or ""."""
    if row.public is None:
        return ""
    ends = zip(row.public.low, row.public.high, strict=True)
    text = "; ".join(f"{brief(low)} to {brief(high)}" for low, high in ends)
    width = "" if row.public.width == 1.0 else f", {row.public.width:.2g} times"
    return f"{text}{width}: {'inside' if row.public.is_inside else 'outside'}"


def ours(row: Row) -> str:
    """Return our value as text, with unit and seeds' range."""
    if row.result is None:
        return ""
    text = _amount(row.result.ours, row.claim)
    seeds = row.result.by_seed
    if len(seeds) > 1 and all(isinstance(v, int | float) for v in seeds):
        text += f" ({brief(min(seeds))} to {brief(max(seeds))})"
    return text
