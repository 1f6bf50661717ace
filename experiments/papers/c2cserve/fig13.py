"""TTFT with and without HybridGEMM (C2CServe, Fig. 13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from c2c.config import SimulationResult
from c2c.ranges import AboveZero, Count, FromZero, Share
from experiments.claims import Result, answer, claim
from experiments.claims.classes import readings
from experiments.claims.robust import readings_table, under_all
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.c2cserve.anchors import FETCH_S
from experiments.papers.c2cserve.baselines import NAMES, engine_settings, serve_alone
from experiments.papers.c2cserve.public import aegaeon_ttft_s
from experiments.papers.c2cserve.replay import TRACES, describe, load_of_half, replay

__all__ = ["compute"]

SHORT: Final = {"aegaeon": "aegaeon", "moe_infinity": "moeinf", "finemoe": "finemoe"}
MIXTRAL: Final = "mixtral-8x7b"
PHASES: Final = 2_000_000  # more than a replay has
# Another reading of the host's work for experts, which fits public measurements equally well.
FETCHES: Final = ("system.expert_cache.host_per=fetch", f"system.expert_cache.host_s={FETCH_S}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Systems with turns of models, in a replay; `half_busy` sets a load."""

    settings: tuple[str, ...]
    systems: tuple[str, ...]
    compression: AboveZero | None
    half_busy: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """Systems with caches of experts, a request at a time."""

    systems: tuple[str, ...]
    models: tuple[str, ...]
    requests: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrids:
    """Experiment of Fig. 13; see its file."""

    turns: Turns
    caches: Caches
    prompt_tokens: Count
    share: Share
    shares: tuple[Share, ...]
    hosts_s: tuple[FromZero, ...]
    routers: tuple[tuple[FromZero, Share], ...]
    router_systems: tuple[str, ...]
    router_tokens: Count
    seventy: str

    @property
    def swept(self) -> list[tuple[str, float, float]]:
        """Model, share and host's work of the sweeps' runs."""
        most_s = max(self.hosts_s, default=0.0)
        pairs = [*((s, most_s) for s in self.shares), *((self.share, h) for h in self.hosts_s)]
        return list(dict.fromkeys((m, *pair) for m in self.caches.models for pair in pairs))


@figure("fig13", title="Fig. 13: HybridGEMM in other systems", experiment=Hybrids,
        draw=".drawing.baselines.draw_fig13", needs=SIMULATOR, traces=TRACES)  # fmt: skip
def compute(context: Context, experiment: Hybrids) -> Computed:
    """Return TTFT with and without HybridGEMM, parts, and effects of cache size."""
    turns, caches = experiment.turns, experiment.caches
    compression = turns.compression or load_of_half(context, turns.half_busy)
    one = partial(_of_one, context, experiment)
    works: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("ttft", partial(_replayed, context, turns, compression, system))
        for system in turns.systems
    ]
    for kind in (k for system in caches.systems for k in (system, f"{system}_hybrid")):
        works += [("ttft", partial(one, kind, model)) for model in caches.models]
        works.append(("ttft", partial(one, kind, MIXTRAL, *FETCHES, host_for="fetch")))
    for model, share, host_s in experiment.swept:
        more = [f"system.expert_cache.share={share}", f"system.expert_cache.host_s={host_s}"]
        works += [
            ("sizes", partial(one, kind, model, *more, share=share, host_each_s=host_s))
            for kind in ("moe_infinity", "moe_infinity_hybrid")
        ]
    for router in experiment.routers:
        more = [f"system.expert_cache.share={experiment.share}", "system.expert_cache.host_s=0"]
        output = experiment.router_tokens
        works += [
            ("routers", partial(one, system, MIXTRAL, *more, router=router, output=output))
            for system in experiment.router_systems
        ]
    tables: dict[str, list[dict[str, Any]]] = {"ttft": [], "sizes": [], "routers": []}
    for name, work in context.each(works):
        tables[name].append(work())
    seventy = serve_alone(
        context, experiment.seventy, "serverlessllm_hybrid", output=2, requests=2,
        prompt=experiment.prompt_tokens,
    )  # fmt: skip
    rows = tables["ttft"]
    caption = (
        "TTFT of other systems with and without HybridGEMM, (a) with turns and (b) with caches of "
        f"experts. Full GPU, link variant '{context.link_variant}'."
    )
    assumptions = (
        f"Aegaeon's load: {describe(context, compression)}; catalog dense6, first seed only.",
        f"MoE-Infinity and FineMoE serve requests of {experiment.prompt_tokens} tokens one after "
        "another; the engine has started before the first.",
        "(b), (c) Experts are drawn without skew or locality.",
        "Bars are means.",
        "Claims are compared at the 95th percentile of the replay or of prompts, which section "
        "9.1 names beside ShareGPT's lengths.",
        "The paper names neither model nor load.",
        "HybridGEMM changes only the way of the weights: a kernel reads bytes that were copied "
        "first.",
        "Aegaeon's first step of a turn leaves the weights in HBM.",
        "The host works for each expert that runs and stays.",
        "(*) In a second reading, shown for Mixtral, the host works for each expert that is "
        "fetched and goes.",
        "Both readings fit the published times a token.",
        "Every engine, scheduler, load and model of experiments/claims/readings.yaml is computed, "
        "too; two at once, in the full profile all.",
        "(c) The reduction depends on the host's work and on the cache's size; no paper prints "
        "either.",
        "(d) The host's work is 0.",
    )
    for row in rows:
        row["published_s"] = _printed(row)
    table: Any = pa.Table.from_pylist
    default = (*_results(context, rows), _seventy(context, experiment, seventy.ttft_s))
    results = _under_readings(context, experiment, rows, default, compression)
    return Computed(
        tables={name: table(content) for name, content in tables.items() if content}
        | {"readings": readings_table(results)},
        results=results,
        caption=caption,
        finding=_finding(rows),
        assumptions=assumptions,
        report=_report(rows, tables["sizes"], tables["routers"]),
    )


def _finding(rows: list[dict[str, Any]]) -> str:
    cuts = {
        NAMES[system]: _cut(_mean(rows, system), _mean(rows, f"{system}_hybrid"))
        for system in SHORT
        if any(r["system"] == f"{system}_hybrid" for r in rows)
    }
    text = ", ".join(f"{name} by {cut:.0f}%" for name, cut in cuts.items())
    return f"HybridGEMM cuts p95 TTFT of {text}; what the host works for experts stays"


def _replayed(context: Context, turns: Turns, compression: float, system: str) -> dict[str, Any]:
    settings = [*turns.settings, f"system={system}", f"timeline.rows={PHASES}"]
    return _of_replay(system, replay(context, compression, settings, context.seeds[0]))


def _of_replay(system: str, result: SimulationResult) -> dict[str, Any]:
    arrival, start, first = (
        result.requests[name].to_numpy() for name in ("arrival_s", "started_s", "first_token_s")
    )
    phases = result.phases.filter(pc.is_in(result.phases["kind"], pa.array(["prefill", "mixed"])))
    seconds = phases["end_s"].to_numpy() - phases["start_s"].to_numpy()
    over_link = phases["link_gbps"].to_numpy() / result.stats.link_capacity_gbps * seconds
    ttft_s, wait_s = float(np.mean(first - arrival)), float(np.mean(start - arrival))
    link_s = float(over_link.sum()) / len(arrival)
    return {
        "system": system,
        "model": "dense6",
        "skew": 0.0,
        "locality": 0.0,
        "host_for": "use",
        "ttft_s": ttft_s,
        "p95_s": result.summary["ttft_s"]["p95"],
        "tpot_s": result.summary["tpot_s"]["mean"],
        "wait_s": wait_s,
        "link_s": link_s,
        "host_s": 0.0,
        "hbm_s": ttft_s - wait_s - link_s,
        "found_share": 1.0,
        "fetched_gb": 0.0,
    }


def _of_one(
    context: Context,
    experiment: Hybrids,
    system: str,
    model: str,
    *more: str,
    router: tuple[float, float] = (0.0, 0.0),
    output: int = 1,
    host_for: str = "use",
    **swept: float,
) -> dict[str, Any]:
    skew, locality = router
    # 128 experts a layer, or many steps, are slow; a store that learns needs more requests. Sweeps
    # use one request: with six, TTFT differs by 0.2%.
    is_slow = model != MIXTRAL or output > 1
    is_one = is_slow and (context.quick or bool(swept))
    got = serve_alone(
        context, model, system, output=output, prompt=experiment.prompt_tokens,
        requests=1 if is_one else experiment.caches.requests,
        overrides=[f"router.skew={skew}", f"router.locality={locality}", *more],
    )  # fmt: skip
    return {
        "system": system,
        "model": model,
        "skew": skew,
        "locality": locality,
        "host_for": host_for,
        **swept,
        "ttft_s": got.ttft_s,
        "p95_s": got.ttft_s,
        "tpot_s": got.tpot_s,
        "wait_s": 0.0,
        **{f"{part}_s": seconds for part, seconds in got.parts_s.items()},
        "found_share": got.found_share,
        "fetched_gb": got.fetched_bytes / 1e9,
    }


def _printed(row: dict[str, Any]) -> float | None:
    """Return the printed TTFT beside a row, or None; the paper names no model."""
    if row["model"] not in ("dense6", MIXTRAL) or row["host_for"] != "use":
        return None
    base = row["system"].removesuffix("_hybrid")
    side = "before" if base == row["system"] else "after"
    return float(claim(f"c2cserve.fig13.{SHORT[base]}.{side}").value)


def _mean(
    rows: list[dict[str, Any]], system: str, column: str = "p95_s", host_for: str = "use"
) -> float:
    return float(np.mean(list(_by_model(rows, system, column, host_for).values())))


def _by_model(
    rows: list[dict[str, Any]], system: str, column: str = "p95_s", host_for: str = "use"
) -> dict[str, float]:
    chosen = (r for r in rows if r["system"] == system and r["host_for"] == host_for)
    return {r["model"]: float(r[column]) for r in chosen}


def _results(context: Context, rows: list[dict[str, Any]]) -> tuple[Result, ...]:
    results = []
    for system, short in SHORT.items():
        if not _by_model(rows, system) or not _by_model(rows, f"{system}_hybrid"):
            continue
        before, after = _mean(rows, system), _mean(rows, f"{system}_hybrid")
        befores, afters = _by_model(rows, system), _by_model(rows, f"{system}_hybrid")
        cuts = {model: _cut(befores[model], afters[model]) for model in befores}
        for side, ours, by_model in (
            ("before", before, befores),
            ("after", after, afters),
            ("reduction", _cut(before, after), cuts),
        ):
            results.append(
                answer(
                    f"c2cserve.fig13.{short}.{side}",
                    ours,
                    "Neither model nor load nor the cache's size is printed; see the figure's "
                    "assumptions."
                    + _another_reading(rows, system, side)
                    + _would_take(rows, system, side),
                    link_variant=context.link_variant,
                    by_model=by_model,
                )
            )
    return tuple(results)


def _cut(before: float, after: float) -> float:
    return 100.0 * (1.0 - after / before)


def _another_reading(rows: list[dict[str, Any]], system: str, quantity: str) -> str:
    by_mean = system == "aegaeon"
    read_both_ways = by_mean or any(r["host_for"] == "fetch" for r in rows)
    if quantity != "reduction" or not read_both_ways:
        return ""
    before, after = (
        _mean(rows, name, "ttft_s", "use" if by_mean else "fetch")
        for name in (system, f"{system}_hybrid")
    )
    cut = f"{_cut(before, after):.0f}%"
    if by_mean:
        return f" This is p95; the mean falls by {cut}."
    return f" If the host works for fetched experts only, TTFT falls by {cut} on {MIXTRAL}."


def _would_take(rows: list[dict[str, Any]], system: str, quantity: str) -> str:
    if quantity != "before":
        return ""
    (row,) = (
        r for r in rows
        if r["system"] == system and r["model"] in ("dense6", MIXTRAL) and r["host_for"] == "use"
    )  # fmt: skip
    if row["fetched_gb"] == 0.0:
        return ""
    printed = float(claim(f"c2cserve.fig13.{SHORT[system]}.before").value)
    gbps = row["fetched_gb"] / (printed - row["hbm_s"])
    return (
        f" Copies at {gbps:.0f} GB/s would give the printed TTFT on {MIXTRAL}: a prompt fetches "
        f"{row['fetched_gb']:.0f} GB, and the link carries 375 GB/s."
    )


def _under_readings(
    context: Context, experiment: Hybrids, rows: list[dict[str, Any]],
    default: tuple[Result, ...], compression: float,
) -> tuple[Result, ...]:  # fmt: skip
    loads = {"half_busy": compression, "own_speed": 1.0, "twice": 2.0}
    cache: dict[tuple[Any, ...], float] = {}

    def once(key: tuple[Any, ...], value: Callable[[], float]) -> float:
        if key not in cache:
            cache[key] = value()
        return cache[key]

    def of_turns(hybrid: bool, reading: Mapping[str, Any]) -> float:
        scheduler, load = reading["aegaeon_system"], reading["load"]
        ttft_s, _ = aegaeon_ttft_s(
            context, loads[load], experiment.turns.settings, engine=reading["engine"],
            scheduler=scheduler, seed=context.seeds[0], hybrid=hybrid,
        )  # fmt: skip
        return float(np.percentile(ttft_s, 95))

    def of_cache(kind: str, model: str, engine: str) -> float:
        if engine == "gpu_bound":
            return _by_model(rows, kind, "p95_s", "use")[model]
        settings = engine_settings(kind, engine)
        return float(_of_one(context, experiment, kind, model, *settings)["p95_s"])

    def ttft_s(system: str, hybrid: bool, reading: Mapping[str, Any]) -> float:
        engine = reading["engine"]
        if system == "aegaeon":
            key = (hybrid, engine, reading["aegaeon_system"], reading["load"])
            return once(key, lambda: of_turns(hybrid, reading))
        kind, model = system + "_hybrid" * hybrid, reading["fig13_model"]
        models = experiment.caches.models if model == "mean" else (model,)
        times_s = [once((kind, m, engine), partial(of_cache, kind, m, engine)) for m in models]
        return float(np.mean(times_s))

    def of_claim(result: Result, reading: Mapping[str, Any]) -> float:
        _, _, system, quantity = result.claim_id.split(".")
        if system == "sllm_70b":
            return serve_alone(
                context, experiment.seventy, "serverlessllm_hybrid", output=2, requests=2,
                prompt=experiment.prompt_tokens,
                overrides=engine_settings("serverlessllm_hybrid", reading["engine"]),
            ).ttft_s  # fmt: skip
        name = next(n for n, short in SHORT.items() if short == system)
        before, after = (ttft_s(name, hybrid, reading) for hybrid in (False, True))
        return {"before": before, "after": after, "reduction": _cut(before, after)}[quantity]

    def answers(**reading: Any) -> Iterator[Result]:
        is_default = all(v == readings("c2cserve")[n].default for n, v in reading.items())
        for result in default:
            ours = result.ours if is_default else partial(of_claim, result, reading)
            yield replace(result, ours=ours)

    names = ("engine", "aegaeon_system", "load", "fig13_model")
    return under_all(answers, names, "c2cserve", together=2 if context.quick else None)


def _seventy(context: Context, experiment: Hybrids, ttft_s: float) -> Result:
    return answer(
        "c2cserve.fig13.sllm_70b.after",
        ttft_s,
        f"A prompt of {experiment.prompt_tokens} tokens, engine started; with copied weights the "
        "model fits no GPU.",
        link_variant=context.link_variant,
    )


def _report(
    rows: list[dict[str, Any]], sizes: list[dict[str, Any]], routed: list[dict[str, Any]]
) -> tuple[tuple[str, ...], ...]:
    head = ("system", "model", "cache share, host ms", "skew, locality", "TTFT s", "wait",
            "link", "HBM", "host", "TPOT s", "experts found %", "paper s")  # fmt: skip
    body = []
    for r in (*rows, *sizes, *routed):
        printed = r.get("published_s")
        body.append(
            (
                NAMES.get(r["system"], r["system"]),
                r["model"],
                f"{r['share']:g}, {1e3 * r['host_each_s']:g}"
                if "share" in r
                else "as set"
                if r["host_for"] == "use"
                else f"{1e3 * FETCH_S:g} ms a fetch",
                f"{r['skew']:g}, {r['locality']:g}",
                *(
                    f"{r[f'{k}_s']:.3g}" if f"{k}_s" in r else ""
                    for k in ("ttft", "wait", "link", "hbm", "host")
                ),
                f"{r['tpot_s']:.3g}" if r["tpot_s"] > 0.0 else "",
                f"{100 * r['found_share']:.0f}",
                "" if printed is None else f"{printed:g}",
            )
        )
    return (head, *body)
