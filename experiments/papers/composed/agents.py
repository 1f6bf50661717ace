"""Most concurrent coding agents on one chip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.config import build, simulate
from c2c.errors import SettingError
from c2c.metrics import meets_tpot, meets_ttft, tpot_s, ttft_s
from c2c.ranges import AboveZero, Count, FromZero, Share
from c2c.workloads import Workload, concatenate
from experiments.answers.bisection import bracket_of, next_values
from experiments.answers.quantity import Quantity
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.c2cserve.measures import measures
from experiments.papers.c2cserve.settings import composed

__all__ = ["AgentsOnAChip", "compute"]

_AGENTS: Final = Quantity(
    name="agents", unit="agents", is_whole=True, more_is_harder=True, start=16, lowest=1,
    highest=8192,
)  # fmt: skip
_ANSWER_S: Final = 10.0  # of a turn beside its tool, for the time over which agents begin


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsOnAChip:
    """Experiment: model, system, load, chips, and memories (`tiers`) for waiting KV."""

    model: str
    system: tuple[str, ...]
    load: tuple[str, ...]
    tool_s: FromZero
    other_tools_s: tuple[FromZero, ...]
    ramp_turns: FromZero
    requests: Count
    met_percent: AboveZero
    tolerance: Share
    chips: dict[str, tuple[str, ...]]
    tiers: dict[str, tuple[str, ...]]
    timed: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in self.timed:
            if name not in self.tiers:
                allowed = f"names among {', '.join(self.tiers)}"
                raise SettingError("experiment.timed", name, allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A search: chip, memories and mean tool time."""

    chip: str
    tier: str
    tool_s: float


@figure("agents", title="Concurrent coding agents on one chip", experiment=AgentsOnAChip,
        draw=".agents_drawing.draw_agents", needs=SIMULATOR, beyond=True)  # fmt: skip
def compute(context: Context, experiment: AgentsOnAChip) -> Computed:
    """Search the most agents by chip, tier and tool time."""
    searches: list[list[dict[str, Any]]] = []
    most: list[dict[str, Any]] = []
    for case in context.each(_cases(experiment)):
        start = max(1, most[-1]["agents"]) if most else _AGENTS.start
        searches.append([*_search(context, experiment, case, start)])
        most.append(_most(experiment, searches[-1]))
    return Computed(
        tables={
            "most": pa.Table.from_pylist(most),
            "runs": pa.Table.from_pylist([row for tried in searches for row in tried]),
        },
        results=(),
        finding=_finding(experiment, most),
        caption=(
            f"Most concurrent agents with {experiment.met_percent:g} % of requests within both "
            f"targets: (a) by chip and memory for KV caches, tools of {experiment.tool_s:g} s; (b) "
            f"over the mean time of a tool. Numbers within {100 * experiment.tolerance:g} % of one "
            f"another are alike. Link variant '{context.link_variant}'."
        ),
        assumptions=(
            f"Model and targets: {experiment.model}.",
            f"System: {', '.join(experiment.system)}.",
            f"Load: {', '.join(experiment.load)}, {experiment.requests} requests for each agent.",
            "An agent begins its next session when its last one has ended. Agents begin over "
            f"{experiment.ramp_turns:g} turns of the tool's time and {_ANSWER_S:g} s; requests "
            "before the last of them and after the last session's begin do not count.",
            f"The search ends within {100 * experiment.tolerance:g} % of the number of agents; "
            f"it uses seed {context.seeds[0]}.",
            *(
                f"{name}: {', '.join(overrides) or 'defaults'}."
                for name, overrides in experiment.tiers.items()
            ),
        ),
        report=_report(most),
    )


def _cases(experiment: AgentsOnAChip) -> list[Case]:
    by_chip = [
        Case(chip=chip, tier=tier, tool_s=experiment.tool_s)
        for chip in experiment.chips
        for tier in experiment.tiers
    ]
    first = next(iter(experiment.chips))
    return by_chip + [
        Case(chip=first, tier=tier, tool_s=tool_s)
        for tier in experiment.timed
        for tool_s in experiment.other_tools_s
    ]


def _search(
    context: Context, experiment: AgentsOnAChip, case: Case, start: float
) -> Iterator[dict[str, Any]]:
    agents, tried = replace(_AGENTS, start=start), dict[float, bool]()
    while values := next_values(agents, tried, experiment.tolerance, 1):
        bracket = bracket_of(agents, tried)
        if (
            bracket.met
            and bracket.missed
            and bracket.missed <= bracket.met * (1 + experiment.tolerance)
        ):
            return
        row = _run(context, experiment, case, int(values[0]))
        tried[values[0]] = row["met_percent"] >= experiment.met_percent
        yield row


def _run(
    context: Context, experiment: AgentsOnAChip, case: Case, agents: int
) -> dict[str, Any]:  # fmt: skip
    ramp_s = experiment.ramp_turns * (case.tool_s + _ANSWER_S)
    settings = [
        *experiment.chips[case.chip], experiment.model, *experiment.system, *experiment.load,
        *experiment.tiers[case.tier], f"workload.tool_s={case.tool_s}",
        f"workload.agents={agents}", f"workload.requests={agents * experiment.requests}",
        f"workload.ramp_s={ramp_s}", f"link={context.link_variant}",
    ]  # fmt: skip
    setup = build(composed(settings, {"seed": context.seeds[0]}))
    got = simulate(setup)
    stats, lookup_tokens = got.stats, max(1, got.stats.prefix_asked_tokens)
    return {
        "chip": case.chip,
        "tier": case.tier,
        "tool_s": case.tool_s,
        "agents": agents,
        "met_percent": _met_percent(setup.workload, got.requests, ramp_s),
        "link_gbps": stats.link_capacity_gbps,
        "found_hbm_percent": 100.0 * stats.prefix_hbm_tokens / lookup_tokens,
        "found_host_percent": 100.0 * stats.prefix_host_tokens / lookup_tokens,
        **measures(got),
    }


def _met_percent(workload: Workload, requests: pa.Table, since_s: float) -> float:
    turn = concatenate(workload.blocks()).turn
    assert turn is not None
    names = (
        "arrival_s",
        "first_token_s",
        "finished_s",
        "output_tokens",
        "ttft_slo_s",
        "tpot_slo_s",
    )
    at_s, first_s, end_s, tokens, ttft_slo_s, tpot_slo_s = (
        requests[name].to_numpy() for name in names
    )
    counts = (at_s >= since_s) & (at_s <= max(since_s, float(at_s[turn == 1].max())))
    counts = counts if counts.any() else np.ones(len(at_s), bool)
    finished = np.array(requests["status"].to_pylist()) == "finished"
    tpot = tpot_s(first_s, end_s, tokens)
    met = meets_ttft(ttft_s(at_s, first_s), ttft_slo_s)
    met &= meets_tpot(tpot, tpot_slo_s, tokens, finished)
    return 100.0 * float(met[counts].mean())


def _most(experiment: AgentsOnAChip, tried: Sequence[dict[str, Any]]) -> dict[str, Any]:
    by_agents = {row["agents"]: row for row in tried}
    met = {n: row["met_percent"] >= experiment.met_percent for n, row in by_agents.items()}
    most = bracket_of(_AGENTS, {float(n): is_met for n, is_met in met.items()}).met
    return by_agents[int(most)] if most else {**tried[-1], "agents": 0}


def _at(rows: Sequence[Mapping[str, Any]], chip: str, tier: str, tool_s: float) -> int:
    return next(
        int(r["agents"]) for r in rows
        if (r["chip"], r["tier"], r["tool_s"]) == (chip, tier, tool_s)
    )  # fmt: skip


def _finding(experiment: AgentsOnAChip, most: Sequence[Mapping[str, Any]]) -> str:
    tool_s, (_, hbm, *_, other, host) = experiment.tool_s, experiment.tiers
    text = [
        f"{chip}: {_at(most, chip, hbm, tool_s)} agents from HBM, {_at(most, chip, host, tool_s)} "
        f"with host memory ({_at(most, chip, other, tool_s)} over PCIe)"
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
            r["chip"], r["tier"], f"{r['tool_s']:g}", str(r["agents"]), f"{r['met_percent']:.1f}",
            f"{r['ttft_p95_s']:.3g}", f"{1e3 * r['tpot_p95_s']:.0f}",
            f"{r['found_hbm_percent']:.1f}", f"{r['found_host_percent']:.1f}",
            f"{r['link_percent']:.1f}",
        )
        for r in most
    ))  # fmt: skip
