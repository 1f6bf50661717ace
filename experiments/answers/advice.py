"""Answer of `c2c advise`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.metrics import BINDS
from experiments.answers.left_out import why, why_lines
from experiments.tables import print_table

__all__ = ["advice", "advice_page", "print_fleets", "with_load"]

# Columns by the order in which a narrow terminal leaves them out.
SPARE: Final = ("kWh/M, most", "USD/M tokens", "TPOT p99 ms", "TTFT p99 s")


def advice(
    fleets: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]],
    *, kinds: int, most: int, goal: float,
) -> str:  # fmt: skip
    """Return the answer in one sentence."""
    goal_text = f"{100 * goal:g} %"
    if not fleets:
        none = (
            f"answer: none. No fleet of up to {most} chips reaches {goal_text} of the requests on "
        )
        none += "target"
        if not others or others[0]["error"] or not others[0]["requests"]:
            return none
        best = others[0]
        return (
            f"{none}; best: {best['spoken']} with {100 * best['met']:.4g} % of "
            f"{best['requests']:,} requests ({why(best)})"
        )
    best = fleets[0]
    first = f"the cheapest of {kinds} kinds of fleets" if kinds > 1 else "enough"
    clauses = [
        f"answer: {best['spoken']} for {best['usd_per_hour']:.2f} USD/h is {first}: "
        f"{100 * best['met']:.2f} % of the requests on target (goal {goal_text})"
    ]
    if "serves_load" in best:
        clauses.append(f"it serves {_left(best)}")
    if "error" in best:
        clauses.append(f"it {_if_slower(best)}")
    sure = next((one for one in fleets if one.get("serves_if_slower")), None)
    if sure is not None and sure is not best:
        usd = f"{sure['usd_per_hour']:.2f} USD/h"
        clauses.append(f"the cheapest that serves with its chip's error is {sure['spoken']}, {usd}")
    return "; ".join(clauses)


def with_load(fleet: Mapping[str, Any]) -> str:
    """Return the load that a fleet serves, such as 2x; "" if not searched."""
    if "serves_load" not in fleet:
        return ""
    at_least = ">= " if fleet["breaks_at_load"] is None else ""
    return f"{at_least}{fleet['serves_load']:g}x"


def _left(fleet: Mapping[str, Any]) -> str:
    load = fleet["serves_load"]
    served = "the load" if load == 1.0 else f"{load:g} times the load"
    if fleet["breaks_at_load"] is None:
        return f"{served} or more"
    binds = f" (bottleneck: {BINDS[fleet['binds']]})" if fleet["binds"] else ""
    return f"{served} and fails at {fleet['breaks_at_load']:g}{binds}"


def _if_slower(fleet: Mapping[str, Any]) -> str:
    words = {True: "still serves", False: "does not serve", None: "was not tried, as a node,"}
    longer = f"{100 * fleet['error']:.3g} % longer ({fleet['error_of']})"
    return f"{words[fleet['serves_if_slower']]} if every step takes {longer}"


def _cells(fleet: Mapping[str, Any]) -> dict[str, str]:
    energy, half = fleet["kwh_per_million_tokens_at_most"], fleet["met_half"]
    spread = "" if half is None else f" ± {100 * half:.2f}"
    return {
        "chips": f"{fleet['chips']} x {fleet['chip']}",
        "layout": fleet["layout"],
        "system": fleet["system"],
        "USD/h": f"{fleet['usd_per_hour']:.2f}",
        "on target %": f"{100 * fleet['met']:.2f}{spread}",
        "load left": with_load(fleet),
        "TTFT p99 s": f"{fleet['ttft_p99_s']:.3f}",
        "TPOT p99 ms": f"{1e3 * fleet['tpot_p99_s']:.1f}",
        "USD/M tokens": f"{fleet['usd_per_million_tokens']:.2f}",
        "kWh/M, most": "" if energy is None else f"{energy:.2f}",
    }


def _fails(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        "chips": f"{row['chips']} x {row['chip']}",
        "layout": row["layout"],
        "system": row["system"],
        "USD/h": f"{row['usd_per_hour']:.2f}",
        "on target %": "" if row["error"] else f"{100 * row['met']:.2f}",
        "load left": "fails",
    }


def print_fleets(
    out: Console, fleets: Sequence[Mapping[str, Any]], failing: Sequence[Mapping[str, Any]]
) -> None:
    """Print a table of fleets; no number is shortened."""
    rows = [*map(_cells, fleets), *map(_fails, failing)]
    print_table(out, partial(_table, rows), spare=SPARE)


def _table(rows: Sequence[Mapping[str, str]], without: frozenset[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    heads = [head for head in rows[0] if head not in without and any(r.get(head) for r in rows)]
    for head in heads:
        is_name = head in ("chips", "layout", "system")
        name = head if is_name else head.replace(" ", "\n", 1)
        table.add_column(name, justify="left" if is_name else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row.get(head, "") for head in heads))
    return table


def advice_page(
    answer: str, fleets: Sequence[Mapping[str, Any]], shown: Sequence[Mapping[str, Any]]
) -> str:
    """Return the answer as Markdown: fleets, paragraphs, and failing kinds."""
    lines = [f"# {answer[0].upper()}{answer[1:]}"]
    for k, one in enumerate(fleets, 1):
        cells = _cells(one)
        if k == 1:
            lines += ["", f"| # | {' | '.join(cells)} |", f"|{' --- |' * (len(cells) + 1)}"]
        lines.append(f"| {k} | {' | '.join(cells.values())} |")
    for k, one in enumerate(fleets, 1):
        if "error" not in one:
            continue
        headroom = f"Serves {_left(one)}. " if "serves_load" in one else ""
        slower = _if_slower(one)
        measured = f" Error: {one['measured']}." if "measured" in one else ""
        lines += [
            "", f"{k}. {headroom}{slower[0].upper()}{slower[1:]}.{measured}", "",
            f"    {one['command']}",
        ]  # fmt: skip
    if shown:
        lines += ["", *why_lines(shown)]
    return "\n".join(lines) + "\n"
