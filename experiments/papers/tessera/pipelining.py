"""Gains of pipelining and priorities (Tessera, Fig. 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from c2c.errors import SettingError
from c2c.ranges import Count
from c2c.systems.tessera import (
    MODES,
    PRICE,
    Options,
    Plan,
    Steps,
    blocks_of_layers,
    load_pair,
    one_cut,
    pipelined,
    plan,
    rehearsed,
    steps_of,
    work_of,
)
from experiments.figure import SYSTEMS, Computed, Context, figure
from experiments.papers.tessera.claim_results import answer
from experiments.papers.tessera.workloads import GPT_OSS, gpus_of, workload

__all__ = ["Pipelining", "compute", "placed_steps"]

_PRINTED: Final = "printed objective"
_PRICED: Final = "transfers at a price"
_REHEARSED: Final = "rehearsed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelining:
    """Experiment of Fig. 9; see `conf/experiment/tessera/fig9.yaml`."""

    pair: str
    in_flight: tuple[Count, ...]
    claimed: Count
    requests: Count
    rehearsed: Count

    def __post_init__(self) -> None:
        if self.claimed not in self.in_flight:
            raise SettingError("experiment.claimed", self.claimed, f"one of {self.in_flight}")


class _Placed(NamedTuple):
    kinds: tuple[Steps, ...]
    computed_s: tuple[tuple[float, ...], ...]


def placed_steps(experiment: Pipelining) -> dict[str, _Placed]:
    """Return placed prefill and decode steps by plan."""
    pair = load_pair(experiment.pair)
    link = pair.link()
    phases = workload(GPT_OSS).phases
    works = [work_of(phase.kernels, pair.gpus) for phase in phases]
    plans_of: dict[str, list[Plan]] = {_PRINTED: [], _PRICED: [], "one cut": []}
    for phase, work in zip(phases, works, strict=True):
        blocks = blocks_of_layers([k.layer for k in phase.kernels], [k.kind for k in phase.kernels])
        for name, price in ((_PRINTED, 0.0), (_PRICED, PRICE)):
            options = Options(price=price)
            best_plan = plan(work, link, "throughput", options=options, tied=blocks, gap=0.02)
            plans_of[name].append(best_plan)
        plans_of["one cut"].append(one_cut(work, link))

    def placed(plans: Sequence[Plan]) -> _Placed:
        return _Placed(
            tuple(steps_of(w, link, p.gpu_of) for w, p in zip(works, plans, strict=True)),
            tuple(tuple(s.compute_s for s in p.stages) for p in plans),
        )

    plans = list(plans_of.values())
    tried = [placed(group).kinds for group in plans]
    prefill, decode = (phase.steps for phase in phases)
    usual = (0,) + (1,) * round(decode / prefill)
    rehearsal = rehearsed(
        list(zip(*tried, strict=True)), [usual] * experiment.rehearsed, "priority",
        experiment.claimed,
    )  # fmt: skip
    best = [plans[n][kind] for kind, n in enumerate(rehearsal.chosen)]
    return {name: placed(plans_of[name]) for name in (_PRINTED, _PRICED)} | {
        _REHEARSED: placed(best)
    }


@figure("tessera.fig9", title="Tessera, Fig. 9: pipelining", experiment=Pipelining,
        draw=".drawing.draw_pipelining", needs=SYSTEMS)  # fmt: skip
def compute(context: Context, experiment: Pipelining) -> Computed:
    """Return the share of the optimum by mode and requests in flight."""
    prefill, decode = (phase.steps for phase in workload(GPT_OSS).phases)
    mean = decode / prefill
    every = placed_steps(experiment)
    rows = []
    for number, (name, placed) in enumerate(every.items()):
        for seed in context.seeds[:1] if context.quick else context.seeds:
            rng = np.random.default_rng(seed)
            lengths = rng.integers(round(mean / 2), round(1.5 * mean) + 1, experiment.requests)
            requests = [(0,) + (1,) * int(n) for n in lengths]
            best_s = min(_least_s(other, requests) for other in every.values())
            for mode in MODES:
                for n in (1,) if mode == "none" else experiment.in_flight:
                    ran = pipelined(placed.kinds, requests, mode, n)
                    rows.append(
                        {"plan": name, "seed": seed, "mode": mode, "in_flight": n,
                         "percent": 100 * best_s / ran.seconds, "seconds": ran.seconds,
                         "steps": ran.steps}
                    )  # fmt: skip
        if context.progress:
            context.progress(number + 1, len(every))
    claimed = experiment.claimed
    shares = {
        name: {mode: _mean(rows, name, mode, 1 if mode == "none" else claimed) for mode in MODES}
        for name in every
    }
    share = shares[_REHEARSED]
    others = "; ".join(
        f"{name}: {', '.join(f'{shares[name][mode]:.0f}' for mode in MODES)}%"
        for name in (_PRINTED, _PRICED)
    )
    note = (
        f"{claimed} in flight (chosen with the printed values in view), each a prefill and "
        f"{mean / 2:.0f} to {1.5 * mean:.0f} decode steps, with the placements that pipeline best "
        f"of three. {', '.join(MODES)} with the others: {others}. With the shortest group first "
        f"(ours) {share['shortest']:.0f}%."
    )
    results = (
        answer("fig9a.no_pipeline", share["none"], note, "in-sample"),
        answer("fig9a.naive_gain", share["naive"] / share["none"], note, "in-sample"),
        answer("fig9a.with_priority", share["priority"], note, "in-sample"),
        answer("fig9b.idle_before", 100 - share["none"], note, "in-sample"),
        answer("fig9b.idle_after", 100 - share["priority"], note, "in-sample"),
    )
    caption = (
        "Lines: throughput as a share of the best placement's without communication, by requests "
        "in flight, a panel a placement. Diamonds: the paper."
    )
    assumptions = (
        f"GPT-oss 20B runs offline on {' + '.join(gpus_of(experiment.pair))}, simulated group by "
        "group and transfer by transfer.",
        "The paper prints neither the pair nor the number of requests in flight.",
        "The printed objective fills the links as long as transfers overlap.",
        "Rehearsed chooses the placement that pipelines best with the oldest first, for each kind "
        "of step.",
        "Rehearsed chooses among the printed objective, the price on transfers, and one cut.",
        "Shortest first is our order of groups.",
    )
    return Computed(
        tables={"shares": pa.Table.from_pylist(rows)},
        results=results,
        finding=(
            f"{claimed} requests in flight reach {share['priority']:.0f} % of the optimum with the "
            f"oldest first and {share['naive']:.0f} % in equal shares; one alone reaches "
            f"{share['none']:.0f} %"
        ),
        caption=caption,
        assumptions=assumptions,
    )


def _least_s(placed: _Placed, requests: Sequence[Sequence[int]]) -> float:
    counts = [sum(r.count(k) for r in requests) for k in range(len(placed.kinds))]
    return max(
        sum(n * times[g] for n, times in zip(counts, placed.computed_s, strict=True))
        for g in range(len(placed.computed_s[0]))
    )


def _mean(rows: Sequence[dict[str, Any]], plan_: str, mode: str, n: int) -> float:
    return float(
        np.mean(
            [
                r["percent"]
                for r in rows
                if (r["plan"], r["mode"], r["in_flight"]) == (plan_, mode, n)
            ]
        )
    )
