"""Prefix cache in host memory, on slices and on whole chips: latency and load of the link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from c2c.config import build, simulate
from c2c.hardware import load_platform
from experiments.c2cserve.measures import measures
from experiments.c2cserve.settings import composed
from experiments.figure import SIMULATOR, Computed, Context, figure

__all__ = ["TRACE", "compute"]

TRACE: Final = "mooncake_synthetic.jsonl.gz"
HOST_GB: Final = (0, 100, 200, 400)
SLOWED: Final = 0.6  # share of the trace's speed on seven slices; a whole chip gets all of it
MODEL: Final = (
    "catalog=dense6",
    "catalog.models=[{spec: llama-3-3b, copies: 1, tpot_slo_s: 0.15}]",
)
STREAMED, HELD = "streamed weights", "held weights"
SYSTEMS: Final = {STREAMED: "system=c2cserve_plus", HELD: "system=serverlessllm"}
PCIE, SAME_CHIP = "H100, PCIe", "H100, GH200's link"
# Without the public trace: conversations with as many tokens per prompt, at about its load.
REQUESTS, RATE_RPS, THINK_S, TURNS = 4000, 8.0, 30.0, 10.0
TEXT_TOKENS, ANSWER_TOKENS, SYSTEM_TOKENS = 1500, 180, 2048
MOST_TOKENS: Final = 60_000  # of a prompt and its answer, for trace and conversations


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run: its part, chip and weights, the host memory for blocks in GB, the load's speed."""

    part: str
    chip: str
    weights: str
    host_gb: int
    speed: float
    settings: tuple[str, ...]


@figure("prefix", title="A prefix cache in host memory",
        draw="prefix.draw_prefix", needs=SIMULATOR, traces=(TRACE,), beyond=True)  # fmt: skip
def compute(context: Context) -> Computed:
    """Compute latency, tokens found and link bytes by host memory, and by chip and link."""
    rows = [_run(context, case) for case in context.each(_cases())]
    return Computed(
        tables={"runs": pa.Table.from_pylist(rows)},
        results=(),
        caption=(
            "(a) Wait for the first token and prompt tokens found, over host memory for a prefix "
            "cache on slices. (b) Wait and link bytes on whole chips with and without the cache; "
            f"link variant '{context.link_variant}'."
        ),
        assumptions=(
            *_setup(context),
            *_told(rows),
        ),
        report=_report(rows),
    )


def _cases() -> list[Case]:
    plus = SYSTEMS[STREAMED]
    slices = [
        Case(part="slices", chip="GH200, 7x12gb", weights=STREAMED, host_gb=gb, speed=SLOWED,
             settings=("hardware=gh200", "mig=7x12gb", plus))
        for gb in HOST_GB
    ]  # fmt: skip
    link = load_platform("gh200").link
    gbps = ("datasheet_gbps", "measured_gbps", "both_directions_gbps")
    h100 = ("hardware=h100_sxm", "mig=1x80gb")
    chips = {
        "GH200, NVLink-C2C": ("hardware=gh200", "mig=1x96gb"),
        PCIE: h100,
        SAME_CHIP: (*h100, *(f"hardware.link.{name}={getattr(link, name)}" for name in gbps)),
    }
    return slices + [
        Case(part="chips", chip=chip, weights=weights, host_gb=gb, speed=1.0,
             settings=(*settings, system))
        for weights, system in SYSTEMS.items()
        for chip, settings in chips.items()
        for gb in (HOST_GB[0], HOST_GB[-1])
    ]  # fmt: skip


def _run(context: Context, case: Case) -> dict[str, Any]:
    settings = [
        *case.settings, *MODEL, *_source(context, case.speed),
        f"workload.max_total_tokens={MOST_TOKENS}",
        f"system.prefix_cache.host_bytes={case.host_gb}e9", f"link={context.link_variant}",
    ]  # fmt: skip
    got = simulate(build(composed(settings, {"seed": context.seeds[0]})))
    stats = got.stats
    found = {"hbm": stats.prefix_hbm_tokens, "host": stats.prefix_host_tokens}
    asked = max(1, stats.prefix_asked_tokens)
    return {
        **{name: getattr(case, name) for name in ("part", "chip", "weights", "host_gb", "speed")},
        "link_gbps": stats.link_capacity_gbps,
        **{f"found_{tier}_percent": 100.0 * tokens / asked for tier, tokens in found.items()},
        "link_tb": float(stats.chip_link_bytes.sum()) / 1e12,
        "blocks_tb": stats.prefix_loaded_bytes / 1e12,
        "prompt_tokens": got.summary["prompt_tokens"],
        **measures(got),
    }


def _has_trace(context: Context) -> bool:
    return context.traces is not None and (context.traces / TRACE).is_file()


def _source(context: Context, speed: float) -> tuple[str, ...]:
    if context.traces is not None and _has_trace(context):
        return (
            "workload=file", f"workload.path='{context.traces / TRACE}'",
            "workload.on_bad_row=skip", f"workload.compression={speed}",
        )  # fmt: skip
    return (
        "workload=conversations", "workload.models=1", f"workload.rate_rps={speed * RATE_RPS}",
        f"workload.requests={REQUESTS}",
        f"workload.turns={TURNS}", f"workload.think_s={THINK_S}", "workload.block_tokens=512",
        f"workload.system_tokens={SYSTEM_TOKENS}", "workload.lengths=fixed",
        f"workload.prompt_tokens={TEXT_TOKENS}", f"workload.output_tokens={ANSWER_TOKENS}",
    )  # fmt: skip


def _setup(context: Context) -> tuple[str, ...]:
    if _has_trace(context):
        load: tuple[str, ...] = (
            f"Load: Mooncake's public trace, prompts and answers up to {MOST_TOKENS:,} tokens.",
        )
    else:
        load = (
            "Load: conversations by the generator; Mooncake's trace is not at hand.",
            f"A conversation has {TURNS:g} turns of {TEXT_TOKENS:,} tokens, {THINK_S:g} s apart, "
            f"and answers of {ANSWER_TOKENS} tokens.",
            f"All prompts share their first {SYSTEM_TOKENS:,} tokens.",
            f"{REQUESTS:,} requests arrive at {RATE_RPS:g} turns/s.",
        )
    return (
        *load,
        "One Llama-3 3B is served.",
        f"(a) Seven slices get {SLOWED:g} of the load's speed.",
        "(b) One whole chip gets all of it; the third chip is an H100 with GH200's link.",
        "Streamed weights: c2cserve_plus keeps them in HBM while there is room.",
        "Held weights: serverlessllm always keeps them in HBM.",
    )


def _told(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return sentences on the link's load, with numbers of the runs."""

    def at(part: str, gb: int, chip: str = "", weights: str = STREAMED) -> Mapping[str, Any]:
        return next(
            r for r in rows
            if r["part"] == part and r["host_gb"] == gb and r["weights"] == weights
            and chip in ("", r["chip"])
        )  # fmt: skip

    most = HOST_GB[-1]
    none, full = at("slices", 0), at("slices", most)
    found = max(1.0, full["found_host_percent"] / 100.0 * full["prompt_tokens"])
    without_mb = 1e6 * none["link_tb"] / none["prompt_tokens"]
    block_mb = 1e6 * full["blocks_tb"] / found
    text = [
        f"(a) Without blocks the link carries {_number(without_mb)} MB of weights a prompt token.",
        f"(a) A token found in host memory takes {_number(block_mb)} MB, so that a hit "
        f"{'spares' if block_mb < without_mb else 'burdens'} the link.",
        f"(a) Blocks are {_number(_share(full))} % of the link's bytes with {most} GB.",
    ]
    for weights in SYSTEMS:
        slow, fast = at("chips", most, PCIE, weights), at("chips", most, SAME_CHIP, weights)
        without = at("chips", 0, PCIE, weights)
        text += [
            f"(b) TTFT p50 with {weights} and {most} GB is {_number(slow['ttft_p50_s'])} s over "
            f"PCIe and {_number(fast['ttft_p50_s'])} s over GH200's link; without blocks, over "
            f"PCIe, it is {_number(without['ttft_p50_s'])} s.",
            f"(b) With {weights} and {most} GB {_binds(slow)}",
        ]
    return tuple(text)


def _share(row: Mapping[str, Any]) -> float:
    return 100.0 * float(row["blocks_tb"]) / max(1e-9, float(row["link_tb"]))


def _binds(row: Mapping[str, Any]) -> str:
    """Return a sentence on a run over PCIe: whether the link is the bottleneck, and its bytes."""
    how = "binds" if row["link_percent"] >= 50.0 else "does not bind"
    blocks = _number(_share(row))
    if _share(row) >= 50.0:
        what = f"{blocks} % of its bytes are blocks"
    else:
        what = f"{blocks} % of its bytes are blocks, the rest is weights that gave way to KV caches"
    return f"PCIe {how}: it is {_number(row['link_percent'])} % used, and {what}."


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _report(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    head = (
        "chip", "weights", "speed", "host memory GB", "TTFT p50 s", "p95", "TPOT p50 ms",
        "found in HBM %", "in host memory %", "link TB", "of it blocks", "link used %",
    )  # fmt: skip
    body = [
        (
            r["chip"], r["weights"], f"{r['speed']:g}", str(r["host_gb"]),
            f"{r['ttft_p50_s']:.3g}", f"{r['ttft_p95_s']:.3g}", f"{1e3 * r['tpot_p50_s']:.0f}",
            f"{r['found_hbm_percent']:.1f}", f"{r['found_host_percent']:.1f}",
            f"{r['link_tb']:.3g}", f"{r['blocks_tb']:.2g}", f"{r['link_percent']:.0f}",
        )
        for r in rows
    ]  # fmt: skip
    return (head, *body)
