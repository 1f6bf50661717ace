"""Referee's page: results, differences and reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Final

import numpy as np
import yaml

from experiments.lab.referee.ours import NAME
from experiments.lab.referee.scenario import Ran, Requests, Scenario

__all__ = ["AGREES", "as_page", "reasons", "times_of"]

AGREES: Final = 0.1  # largest difference of two simulators that agree
_TIMES: Final = {
    "ttft_p50_s": "TTFT p50", "ttft_p99_s": "p99", "tpot_p50_s": "TPOT p50", "tpot_p99_s": "p99",
    "rate_rps": "served/s",
}  # fmt: skip


def times_of(ran: Ran, requests: Requests) -> dict[str, Any]:
    """Return a run's seconds, and percentiles of TTFT and TPOT."""
    served = np.isfinite(ran.end_s)
    several = served & (requests.output > 1)
    tpot_s = (ran.end_s - ran.ttft_s)[several] / (requests.output[several] - 1)
    ends_s = (requests.arrival_s + ran.end_s)[served]
    return {
        "version": ran.version,
        "cpu_s": ran.cpu_s,
        "wall_s": ran.wall_s,
        "requests": len(served),
        "served": int(served.sum()),
        **{f"ttft_p{p}_s": float(np.percentile(ran.ttft_s[served], p)) for p in (50, 99)},
        **{f"tpot_p{p}_s": float(np.percentile(tpot_s, p)) for p in (50, 99)},
        "rate_rps": float(served.sum() / (ends_s.max() - requests.arrival_s[0])),
    }


def reasons() -> Mapping[str, Mapping[str, str]]:
    """Return reasons of differences above a tenth, by scenario and simulator."""
    text = (resources.files("experiments.lab.referee") / "reasons.yaml").read_text(encoding="utf-8")
    result: Mapping[str, Mapping[str, str]] = yaml.safe_load(text)
    return result


def as_page(scenarios: Sequence[Scenario], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page in Markdown."""
    versions = sorted({row["version"] for row in rows if "version" in row})
    lines = [
        "# Referee",
        "",
        f"Versions: {', '.join(versions)}.",
        "",
        "Times in ms; CPU seconds are of the whole command. A difference from c2c above a tenth",
        "has the number of its reason.",
    ]
    lines += ["", "## Scenarios", ""]
    lines += [f"- {_described(scenario)}" for scenario in scenarios]
    lines += ["", "## Results", ""]
    heads = ["scenario", "simulator", "CPU s", *_TIMES.values(), "served", "reason"]
    lines.append("| " + " | ".join(heads) + " |")
    lines.append("|" + " --- |" * len(heads))
    causes: dict[str, int] = {}
    for scenario in scenarios:
        lines += _results(scenario, rows, causes)
    if causes:
        lines += ["", "## Reasons of differences above a tenth", ""]
        lines += [f"{number}. {why}" for why, number in causes.items()]
    if refusals := list(_refusals(rows)):
        lines += ["", "## Refused", "", *refusals]
    return "\n".join(lines) + "\n"


def _refusals(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    scenarios: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if why := row.get("refused") or row.get("failed"):
            verb = "refused" if "refused" in row else "failed"
            scenarios.setdefault((row["simulator"], verb, why), []).append(row["scenario"])
    for (simulator, verb, why), names in scenarios.items():
        yield f"- {simulator} {verb}: {why} ({', '.join(names)})."


def _described(scenario: Scenario) -> str:
    settings = " ".join(scenario.settings) or f"{scenario.model}, {scenario.tokens} tokens a step"
    load = f"{scenario.requests:,} at {scenario.rate_rps:g}/s"
    return f"**{scenario.name}**: {scenario.asks}; {load}, {scenario.chip}, {settings}"


def _results(
    scenario: Scenario, rows: Sequence[Mapping[str, Any]], causes: dict[str, int]
) -> Iterable[str]:
    ran = [row for row in rows if row["scenario"] == scenario.name and "cpu_s" in row]
    mine = next((row for row in ran if row["simulator"] == NAME), None)
    for row in ran:
        is_all = row["served"] == row["requests"]
        cells = [
            scenario.name,
            row["simulator"],
            f"{row['cpu_s']:.2f}",
            *(_shown(name, row[name]) for name in _TIMES),
            "all" if is_all else f"{row['served']:,} of {row['requests']:,}",
            "" if mine is None else _reason(scenario, mine, row, causes),
        ]
        yield "| " + " | ".join(cells) + " |"


def _shown(name: str, value: float) -> str:
    return f"{value:.1f}" if name == "rate_rps" else f"{1e3 * value:,.1f}"


def _reason(
    scenario: Scenario, mine: Mapping[str, Any], row: Mapping[str, Any], causes: dict[str, int]
) -> str:
    if all(abs(row[name] / mine[name] - 1.0) <= AGREES for name in _TIMES):
        return ""
    why = reasons().get(scenario.name, {}).get(row["simulator"], "not known yet")
    return str(causes.setdefault(why, len(causes) + 1))
