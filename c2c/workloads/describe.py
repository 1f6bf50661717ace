"""Description of a workload in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from c2c.workloads.assignment import OWN
from c2c.workloads.blocks import WISHES, Workload

__all__ = ["describe", "doubts"]

_HOW = {"map": " (mapped)", "name": " (its name)", "spec": " (its architecture)", "rule": ""}
_SIZE = re.compile(r"(?<![\w.])\d+(\.\d+)?b(?![a-z])", re.IGNORECASE)  # such as 7B
_SHOWN_COLUMNS = 20
_SHOWN_IDS = 6  # ids named for each model
_SHOWN_MODELS = 20


def describe(workload: Workload) -> list[str]:
    """Return the lines that a run prints."""
    facts = workload.description
    if not facts:
        return ["workload without a description"]
    rate = facts["mean_rate_rps"]
    lines = [
        f"workload {facts['name']}: {facts['requests']:,} requests from {facts['source']}, "
        + (_clients(facts) if facts["closed_loop"] else
           _duration(facts["span_s"]) + (f", {rate:.3g} requests/s" if rate else ""))
    ]  # fmt: skip
    if "rows" in facts:
        lines.append(_rows(facts))
        lines.append(f"times: {facts['times']}")
        if facts["columns_guessed"]:
            took = ", ".join(
                name if name == column else f"{name} = {column}"
                for name, column in facts["columns"].items()
            )
            lines.append(f"columns: took {took} (or set workload.columns)")
        if names := facts["columns_not_used"]:
            more = f" and {len(names) - _SHOWN_COLUMNS} more" * (len(names) > _SHOWN_COLUMNS)
            lines.append(f"columns not used: {', '.join(names[:_SHOWN_COLUMNS])}{more}")
        lines += _carried(facts)
    if factors := _factors(facts):
        lines.append("factors: " + ", ".join(factors))
    lengths = facts["lengths"]
    text = f"lengths: {lengths['name']}"
    if "pairs_read" in lengths:
        pairs = lengths["pairs_read"] - lengths["pairs_dropped_by_filter"]
        text += (
            f", {pairs:,} of {lengths['pairs_read']:,} pairs, mean "
            f"{lengths['mean_prompt_tokens']:g} prompt and {lengths['mean_output_tokens']:g} "
            "output tokens"
        )
    lines.append(text)
    return lines + _served(facts)


def _rows(facts: Mapping[str, Any]) -> str:
    parts = [f"rows: {facts['used_rows']:,} of {facts['rows']:,} used (format {facts['format']})"]
    if facts["bad_rows"]:
        bad = ", ".join(f"{kind} {count}" for kind, count in facts["bad_rows"].items())
        parts.append(f"bad: {bad} (on_bad_row={facts['on_bad_row']})")
    if facts["duplicates"]:
        parts.append(f"duplicates: {facts['duplicates']:,} (on_duplicate={facts['on_duplicate']})")
    if facts["sorted"]:
        parts.append(f"moved by sorting: {facts['reordered_rows']:,}")
    return "; ".join(parts)


def _factors(facts: Mapping[str, Any]) -> list[str]:
    factors = []
    if facts["compression"] != 1:
        factors.append(f"compression {facts['compression']:g}x")
    if facts["replicas"] != 1:
        factors.append(f"replicas {facts['replicas']}")
    window = facts["window"]
    if window["start_s"] or window["duration_s"]:
        length = f"{window['duration_s']:g} s" if window["duration_s"] else "to the end"
        factors.append(f"window from {window['start_s']:g} s, {length}")
    if facts["max_requests"]:
        factors.append(f"first {facts['max_requests']:,} requests")
    return factors


def _served(facts: Mapping[str, Any]) -> list[str]:
    assignment = facts["assignment"]
    how, rule = assignment["how"], assignment["rule"]
    if facts["kind"] != "trace" and not assignment["explicit"]:
        return []  # a generator's ids are numbers, and the table of results has the models
    ids_of: dict[tuple[str, bool], list[str]] = {}  # ids of a model, those that name it and others
    for name, target in assignment["map"].items():
        model = assignment["made_of"].get(target, target)
        ids_of.setdefault((model, how[name] == "rule"), []).append(name)
    lines = ["models: " + (assignment["rule_says"] if "rule" in how.values() else "as named")]
    for (model, _), ids in list(ids_of.items())[:_SHOWN_MODELS]:
        more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
        note = ", a deployment each" if rule == OWN and len(ids) > 1 else ""
        shown = ", ".join(name + _HOW[how[name]] for name in ids[:_SHOWN_IDS])
        count = sum(assignment["requests_of"][name] for name in ids)
        lines.append(f"  {model}: {count:,} requests of {shown}{more}{note}")
    if len(ids_of) > _SHOWN_MODELS:
        lines.append(f"  and {len(ids_of) - _SHOWN_MODELS:,} more models, see summary.json")
    return lines


def doubts(workload: Workload) -> list[str]:
    """Return the lines that a user should not miss."""
    facts = workload.description
    assignment = facts["assignment"]
    lines = list(facts.get("doubts", ()))
    ids, models = len(assignment["map"]), len(assignment["requests"])
    if ids != models:
        origin = "trace" if facts["kind"] == "trace" else "generator"
        lines.append(
            f"{ids:,} ids of the {origin} are served by {models:,} model{'s'[: models != 1]}"
            f" (workload.assignment={assignment['rule']})"
        )
    sized = [
        name for name, how in assignment["how"].items() if how == "rule" and _SIZE.search(name)
    ]
    if sized:
        model_of = {
            name: assignment["made_of"].get(t := assignment["map"][name], t) for name in sized
        }
        shown = ", ".join(f"{name} by {model_of[name]}" for name in sized[:_SHOWN_IDS])
        more = f" and {len(sized) - _SHOWN_IDS} more" if len(sized) > _SHOWN_IDS else ""
        lines.append(
            f"no known model has these names, so others serve them: {shown}{more} "
            "(catalog.models or workload.assignment_map names theirs)"
        )
    return lines


def _carried(facts: Mapping[str, Any]) -> list[str]:
    lines = []
    if facts["hashes_dropped"]:
        lines.append("prefixes: none, as hash_ids do not fit drawn lengths")
    if blocks := facts["blocks"]:
        line = (
            f"prefixes: {blocks['blocks']:,} blocks of {blocks['block_tokens']:,} tokens in "
            f"{blocks['requests']:,} requests"
        )
        if unlike := [f"{blocks[k]:,} have {k}" for k in ("fewer", "more") if blocks[k]]:
            line += f", of which {' and '.join(unlike)} hashes than blocks (workload.block_tokens)"
        lines.append(line)
    if facts["sessions"]:
        waits = ", each turn after the previous answer" if facts.get("turns_wait") else ""
        lines.append(f"sessions: {facts['sessions']:,}{waits}")
    if wishes := [name for name in WISHES if name in facts["columns"]]:
        lines.append(f"a request's own: {', '.join(wishes)}")
    if facts["measured"]:
        lines.append(f"measured latencies (TTFT, TPOT): {facts['measured']:,} requests")
    return lines


def _clients(facts: Mapping[str, Any]) -> str:
    loop = facts["closed_loop"]
    thinks = f" that think for {loop['think_s']:g} s" if loop["think_s"] else ""
    if sessions := facts.get("sessions"):
        agents = f"{loop['concurrency']:,} agents{thinks}"
        return f"sent by {agents}, each a session after another of {sessions:,}"
    return f"sent by {loop['concurrency']:,} clients{thinks}, one after another"


def _duration(span_s: float) -> str:
    return f"{span_s:,.3g} s" if span_s < 600 else f"{span_s / 3600:,.1f} h"
