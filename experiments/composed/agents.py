"""Concurrent coding agents on one chip: the most within the targets, by link and by memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from c2c.config import build, simulate
from c2c.ranges import AboveZero, Count, FromZero, Share
from experiments.answers.bisection import bracket_of, next_values
from experiments.answers.quantity import Quantity
from experiments.c2cserve.measures import measures
from experiments.c2cserve.settings import composed
from experiments.composed.prefix import Chip
from experiments.figure import SIMULATOR, Computed, Context, figure

__all__ = ["AgentsOnAChip", "compute"]

_AGENTS: Final = Quantity(
    name="agents", unit="agents", is_whole=True, more_is_harder=True, start=16, lowest=1,
    highest=8192,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsOnAChip:
    """Experiment: model, system, load, chips, and the memories for KV caches of waiting agents."""

    model: str
    system: tuple[str, ...]
    load: tuple[str, ...]
    tool_s: FromZero
    other_tools_s: tuple[FromZero, ...]
    requests: Count
    met_percent: AboveZero
    tolerance: Share
    chips: dict[str, Chip]
    tiers: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One search: chip, memories and mean time of a tool."""

    chip: str
    tier: str
    tool_s: float


@figure("agents", title="Concurrent coding agents on one chip", experiment=AgentsOnAChip,
        draw="agents.draw_agents", needs=SIMULATOR, beyond=True)  # fmt: skip
def compute(context: Context, experiment: AgentsOnAChip) -> Computed:
    """Search the most agents within the targets, for each chip, tier and time of a tool."""
    searches = [[*_search(context, experiment, c)] for c in context.each(_cases(experiment))]
    most = [_most(experiment, tried) for tried in searches]
    return Computed(
        tables={
            "most": pa.Table.from_pylist(most),
            "runs": pa.Table.from_pylist([row for tried in searches for row in tried]),
        },
        results=(),
        finding=_finding(experiment, most),
        caption=(
            f"Most concurrent agents with {experiment.met_percent:g} % of requests within both "
            f"targets: (a) by chip and link, tools of {experiment.tool_s:g} s; (b) over the mean "
            f"time of a tool. Link variant '{context.link_variant}'."
        ),
        assumptions=(
            f"Model and targets: {experiment.model}.",
            f"System: {', '.join(experiment.system)}.",
            f"Load: {', '.join(experiment.load)}, {experiment.requests} requests for each agent.",
            "An agent begins its next session when its last one has ended.",
            "The chips over PCIe have the link of another chip and nothing else changed; they "
            "keep the host memory of a Superchip.",
            f"The search ends within {100 * experiment.tolerance:g} % of the number of agents; "
            f"it uses seed {context.seeds[0]}.",
            *(f"{name}: {', '.join(of) or 'defaults'}." for name, of in experiment.tiers.items()),
        ),
        report=_report(most),
    )


def _cases(experiment: AgentsOnAChip) -> list[Case]:
    tool_s = experiment.tool_s
    by_chip = [
        Case(chip=chip, tier=tier, tool_s=tool_s)
        for chip in experiment.chips
        for tier in experiment.tiers
    ]
    over_time = [
        Case(chip=chip, tier=tier, tool_s=other_s)
        for other_s in experiment.other_tools_s
        for chip in [*experiment.chips][:2]
        for tier in [*experiment.tiers][1:]
    ]
    return by_chip + over_time


def _search(
    context: Context, experiment: AgentsOnAChip, case: Case
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield a row for each number of agents that the search tries."""
    tried: dict[float, bool] = {}
    while values := next_values(_AGENTS, tried, experiment.tolerance, 1):
        bracket = bracket_of(_AGENTS, tried)
        if (
            bracket.met
            and bracket.missed
            and bracket.missed <= bracket.met * (1.0 + experiment.tolerance)
        ):
            return
        row = _run(context, experiment, case, int(values[0]))
        tried[values[0]] = row["both_percent"] >= experiment.met_percent
        yield row


def _run(
    context: Context, experiment: AgentsOnAChip, case: Case, agents: int
) -> dict[str, Any]:  # fmt: skip
    settings = [
        *experiment.chips[case.chip].all_settings(), experiment.model, *experiment.system,
        *experiment.load, *experiment.tiers[case.tier], f"workload.tool_s={case.tool_s}",
        f"workload.agents={agents}", f"workload.requests={agents * experiment.requests}",
        f"link={context.link_variant}",
    ]  # fmt: skip
    got = simulate(build(composed(settings, {"seed": context.seeds[0]})))
    stats, asked = got.stats, max(1, got.stats.prefix_asked_tokens)
    return {
        "chip": case.chip,
        "tier": case.tier,
        "tool_s": case.tool_s,
        "agents": agents,
        "link_gbps": stats.link_capacity_gbps,
        "found_hbm_percent": 100.0 * stats.prefix_hbm_tokens / asked,
        "found_host_percent": 100.0 * stats.prefix_host_tokens / asked,
        **measures(got),
    }


def _most(experiment: AgentsOnAChip, tried: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the run with the most agents below all that missed the targets; 0 agents if none."""
    by_agents = {row["agents"]: row for row in tried}
    met = {n: row["both_percent"] >= experiment.met_percent for n, row in by_agents.items()}
    most = bracket_of(_AGENTS, {float(n): is_met for n, is_met in met.items()}).met
    return by_agents[int(most)] if most else {**tried[-1], "agents": 0}


def _at(rows: Sequence[Mapping[str, Any]], chip: str, tier: str, tool_s: float) -> int:
    return next(
        int(r["agents"]) for r in rows
        if (r["chip"], r["tier"], r["tool_s"]) == (chip, tier, tool_s)
    )  # fmt: skip


def _finding(experiment: AgentsOnAChip, most: Sequence[Mapping[str, Any]]) -> str:
    tool_s, (_, hbm, host, *_) = experiment.tool_s, experiment.tiers
    text = [
        f"{chip}: {_at(most, chip, hbm, tool_s)} agents from HBM, "
        f"{_at(most, chip, host, tool_s)} with host memory"
        for chip in experiment.chips
    ]
    return "; ".join(text)


def _report(most: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    head = (
        "chip", "KV caches in", "tool s", "agents", "within both targets %", "TTFT p95 s",
        "TPOT p95 ms", "found in HBM %", "in host memory %", "link used %",
    )  # fmt: skip
    return (head, *(
        (
            r["chip"], r["tier"], f"{r['tool_s']:g}", str(r["agents"]), f"{r['both_percent']:.1f}",
            f"{r['ttft_p95_s']:.3g}", f"{1e3 * r['tpot_p95_s']:.0f}",
            f"{r['found_hbm_percent']:.1f}", f"{r['found_host_percent']:.1f}",
            f"{r['link_percent']:.1f}",
        )
        for r in most
    ))  # fmt: skip
