"""Description of a workload in words, which a run prints before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from c2c.workloads.blocks import Workload

__all__ = ["describe", "shared_models"]

_HOW = {"map": " (mapped)", "name": " (its name)", "spec": " (its architecture)", "rule": ""}
_SHOWN_COLUMNS = 20
_SHOWN_IDS = 6  # ids named for each catalog model
_SHOWN_MODELS = 20


def describe(workload: Workload) -> list[str]:
    """Return the lines to print: source, bad rows, factors, lengths, assignment of models."""
    said = workload.description
    if not said:
        return ["workload without a description"]
    rate = said["mean_rate_rps"]
    lines = [
        f"workload {said['name']}: {said['requests']:,} requests from {said['source']}, "
        + (_clients(said["closed_loop"]) if said["closed_loop"] else
           _duration(said["span_s"]) + (f", {rate:.3g} requests/s" if rate else ""))
    ]  # fmt: skip
    if "rows" in said:
        bad = ", ".join(f"{kind} {count}" for kind, count in said["bad_rows"].items()) or "none"
        lines.append(
            f"rows: {said['used_rows']:,} of {said['rows']:,} used (format {said['format']}); bad: "
            f"{bad} (on_bad_row={said['on_bad_row']}); duplicates: {said['duplicates']} "
            f"(on_duplicate={said['on_duplicate']})"
            + (f"; moved by sorting: {said['reordered_rows']}" if said["sorted"] else "")
        )
        lines.append(f"times: {said['times']}")
        if guessed := said["columns_guessed"]:
            took = ", ".join(f"{name} = {column}" for name, column in guessed.items())
            lines.append(f"columns: took {took} (or set workload.columns)")
        if names := said["columns_not_used"]:
            more = f" and {len(names) - _SHOWN_COLUMNS} more" * (len(names) > _SHOWN_COLUMNS)
            lines.append(f"columns not used: {', '.join(names[:_SHOWN_COLUMNS])}{more}")
        lines += _carried(said)
    factors = [f"compression {said['compression']:g}x", f"replicas {said['replicas']}"]
    window = said["window"]
    if window["start_s"] or window["duration_s"]:
        length = f"{window['duration_s']:g} s" if window["duration_s"] else "to the end"
        factors.append(f"window from {window['start_s']:g} s, {length}")
    if said["max_requests"]:
        factors.append(f"first {said['max_requests']:,} requests")
    lines.append("factors: " + ", ".join(factors))
    lengths = said["lengths"]
    text = f"lengths: {lengths['name']}"
    if "pairs_read" in lengths:
        kept = lengths["pairs_read"] - lengths["pairs_dropped_by_filter"]
        text += (
            f", {kept:,} of {lengths['pairs_read']:,} pairs, mean "
            f"{lengths['mean_prompt_tokens']:g} prompt and {lengths['mean_output_tokens']:g} "
            "output tokens"
        )
    lines.append(text)
    return lines + _served(said["assignment"])


def _served(assignment: Mapping[str, Any]) -> list[str]:
    """Return the lines on the models that serve a workload's ids."""
    how, made_of = assignment["how"], assignment["made_of"]
    lines = ["models: assigned by name or assignment_map"]
    if "rule" in how.values():
        lines = [f"models: {assignment['rule']}: {assignment['rule_says']}"]
    of: dict[str, list[str]] = {}
    for name, target in assignment["map"].items():
        of.setdefault(target, []).append(name + _HOW[how[name]])
    counts = list(assignment["requests"].items())
    for target, requests in counts[:_SHOWN_MODELS]:
        if target in made_of:
            lines.append(
                f"  {target}: {requests:,} requests, spec and targets of {made_of[target]}"
            )
            continue
        names = of[target]
        more = f" and {len(names) - _SHOWN_IDS} more" if len(names) > _SHOWN_IDS else ""
        lines.append(f"  {target}: {requests:,} requests of {', '.join(names[:_SHOWN_IDS])}{more}")
    if rest := counts[_SHOWN_MODELS:]:
        lines.append(f"  {len(rest):,} more models: {sum(n for _, n in rest):,} requests")
    return lines


def shared_models(workload: Workload) -> str:
    """Return a line if several ids of a workload share a model, else ""."""
    said = workload.description
    ids, models = (len(said["assignment"][name]) for name in ("map", "requests"))
    if ids == models:
        return ""
    origin = "trace" if said["kind"] == "trace" else "generator"
    return (
        f"{ids:,} ids of the {origin} are served by {models:,} model{'s'[: models != 1]}"
        f" (workload.assignment={said['assignment']['rule']})"
    )


def _carried(said: Mapping[str, Any]) -> list[str]:
    lines = []
    if said["hashes_dropped"]:
        lines.append("prefixes: none, as hash_ids do not fit drawn lengths")
    if blocks := said["blocks"]:
        line = (
            f"prefixes: {blocks['blocks']:,} blocks of {blocks['block_tokens']:,} tokens in "
            f"{blocks['requests']:,} requests"
        )
        if unlike := [f"{blocks[k]:,} have {k}" for k in ("fewer", "more") if blocks[k]]:
            line += f", of which {' and '.join(unlike)} hashes than blocks (workload.block_tokens)"
        lines.append(line)
    if said["sessions"]:
        waits = ", each turn after the previous answer" if said.get("turns_wait") else ""
        lines.append(f"sessions: {said['sessions']:,}{waits}")
    if said["measured"]:
        lines.append(f"measured latencies (TTFT, TPOT): {said['measured']:,} requests")
    return lines


def _clients(loop: Mapping[str, Any]) -> str:
    thinks = f" that think for {loop['think_s']:g} s" if loop["think_s"] else ""
    return f"sent by {loop['concurrency']:,} clients{thinks}, one after another"


def _duration(span_s: float) -> str:
    return f"{span_s:,.3g} s" if span_s < 600 else f"{span_s / 3600:,.1f} h"
