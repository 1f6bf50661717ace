"""What pipelining and priorities are worth (Tessera, Fig. 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.systems.tessera import (
    MODES,
    PRICE,
    Mode,
    Options,
    Steps,
    blocks_of_layers,
    load_pair,
    pipelined,
    plan,
    stages_of,
    steps_of,
    work_of,
)
from experiments.c2cserve.context import Computed, Context
from experiments.tessera.answering import answer
from experiments.tessera.workloads import GPT_OSS, workload

__all__ = ["IN_FLIGHT", "compute", "placed_steps"]

PAIR: Final = "a100_l40s"
IN_FLIGHT: Final = 4
_SWEPT: Final = (1, 2, 4, 8)
_REQUESTS: Final = {"quick": 32, "full": 128}
_PLANS: Final = {"printed objective": 0.0, "transfers at a price": PRICE}


def placed_steps(price: float) -> tuple[tuple[Steps, ...], tuple[tuple[float, ...], ...]]:
    """Return the placed prefill and decode step, and what each computes on each GPU."""
    pair = load_pair(PAIR)
    link = pair.link()
    kinds, computed = [], []
    for phase in workload(GPT_OSS).phases:
        work = work_of(phase.kernels, pair.gpus)
        blocks = blocks_of_layers([k.layer for k in phase.kernels], [k.kind for k in phase.kernels])
        made = plan(work, link, "throughput", options=Options(price=price), tied=blocks, gap=0.02)
        kinds.append(steps_of(work, link, made.gpu_of))
        computed.append(tuple(s.compute_s for s in stages_of(work, link, made.gpu_of)[0]))
    return tuple(kinds), tuple(computed)


def compute(context: Context) -> Computed:
    """Return the share of the optimum by mode and by how many are in flight, for two plans."""
    prefill, decode = (phase.steps for phase in workload(GPT_OSS).phases)
    each = decode / prefill
    rows = []
    for number, (name, price) in enumerate(_PLANS.items()):
        kinds, computed = placed_steps(price)
        for seed in context.seeds[:1] if context.quick else context.seeds:
            rng = np.random.default_rng(seed)
            lengths = rng.integers(round(each / 2), round(1.5 * each) + 1,
                                   _REQUESTS[context.profile])  # fmt: skip
            requests = [(0,) + (1,) * int(n) for n in lengths]
            rows += [
                {"plan": name, "seed": seed, "mode": mode, "in_flight": n,
                 **_share(kinds, computed, requests, mode, n)}
                for mode in MODES
                for n in (_SWEPT[:1] if mode == "none" else _SWEPT[1:])
            ]  # fmt: skip
        if context.progress:
            context.progress(number + 1, len(_PLANS))
    printed, found = (
        {mode: _mean(rows, name, mode, 1 if mode == "none" else IN_FLIGHT) for mode in MODES}
        for name in _PLANS
    )
    note = (
        "Price and number in flight were chosen with the printed values in view. "
        f"{IN_FLIGHT} in flight, each a prefill and {each / 2:.0f} to {1.5 * each:.0f} decode "
        f"steps, transfers at a price of {PRICE:g}; by the printed objective, under which "
        f"transfers that overlap are free: {printed['none']:.0f}, {printed['naive']:.0f}, "
        f"{printed['priority']:.0f}%."
    )
    results = (
        answer("fig9a.no_pipeline", found["none"], note, "in-sample"),
        answer("fig9a.naive_gain", found["naive"] / found["none"], note, "in-sample"),
        answer("fig9a.with_priority", found["priority"], note, "in-sample"),
        answer("fig9b.idle_before", 100 - found["none"], note, "in-sample"),
        answer("fig9b.idle_after", 100 - found["priority"], note, "in-sample"),
    )
    caption = (
        "GPT-oss 20B offline on A100 + L40s, group by group and transfer by transfer: throughput "
        "as a share of what the placement gives without communication. Diamonds: the paper, whose "
        "pair and number in flight are not printed. The printed objective fills the links as long "
        "as they overlap, and four in flight cannot hide that; a price on transfers costs at most "
        "2% of the slowest stage."
    )
    return Computed(tables={"shares": pa.Table.from_pylist(rows)}, results=results, caption=caption)


def _share(
    kinds: Sequence[Steps],
    computed: Sequence[Sequence[float]],
    requests: Sequence[Sequence[int]],
    mode: Mode,
    in_flight: int,
) -> dict[str, Any]:
    ran = pipelined(kinds, requests, mode, in_flight)
    counts = [sum(r.count(k) for r in requests) for k in range(len(kinds))]
    best = max(
        sum(n * times[g] for n, times in zip(counts, computed, strict=True))
        for g in range(len(ran.busy_s))
    )
    return {"percent": 100 * best / ran.seconds, "seconds": ran.seconds, "steps": ran.steps}


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
