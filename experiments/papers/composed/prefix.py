"""Prefix cache in host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from c2c.config import build, simulate
from c2c.hardware import load_platform
from c2c.ranges import AboveZero, Count, FromZero, Index
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.c2cserve.measures import measures
from experiments.papers.c2cserve.settings import composed

__all__ = ["TRACE", "Prefixes", "compute"]

TRACE: Final = "mooncake_synthetic.jsonl.gz"
_LINK: Final = (
    "datasheet_gbps", "measured_gbps", "both_directions_gbps", "sm_read_low_gbps",
    "sm_read_high_gbps",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """A sliced chip: name, settings, and share of the load's speed."""

    name: str
    settings: tuple[str, ...]
    speed: AboveZero


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A whole chip: settings, and the chip of its link; "": own."""

    settings: tuple[str, ...]
    link: str = ""

    def all_settings(self) -> tuple[str, ...]:
        """Return the settings with those of the link."""
        if not self.link:
            return self.settings
        link = load_platform(self.link).link
        return (
            *self.settings, *(f"hardware.link.{name}={getattr(link, name)}" for name in _LINK)
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """Load without the public trace."""

    requests: Count
    rate_rps: AboveZero
    turns: AboveZero
    think_s: FromZero
    text_tokens: Count
    answer_tokens: Count
    system_tokens: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """Experiment: model, cache sizes, chips, systems, and load."""

    model: tuple[str, ...]
    max_total_tokens: Count
    host_gb: tuple[Index, ...]
    slices: Slices
    chips: dict[str, Chip]
    systems: dict[str, tuple[str, ...]]
    conversations: Conversations


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run: part, chip, weights, GB of host memory, speed."""

    part: str
    chip: str
    weights: str
    host_gb: int
    speed: float
    settings: tuple[str, ...]


@figure("prefix", title="A prefix cache in host memory", experiment=Prefixes,
        draw=".prefix_drawing.draw_prefix", needs=SIMULATOR,
        traces=(TRACE,), beyond=True)  # fmt: skip
def compute(context: Context, experiment: Prefixes) -> Computed:
    """Compute latency, cached tokens and link bytes by host memory, chip and link."""
    rows = [_run(context, experiment, case) for case in context.each(_cases(experiment))]
    return Computed(
        tables={"runs": pa.Table.from_pylist(rows)},
        results=(),
        finding=_finding(rows),
        caption=(
            "(a) Wait for the first token and prompt tokens found, over host memory for a prefix "
            "cache on slices. (b) Wait and link bytes on whole chips with and without the cache; "
            f"link variant '{context.link_variant}'."
        ),
        assumptions=(*_setup(context, experiment), *_told(experiment, rows)),
        report=_report(rows),
    )


def _cases(experiment: Prefixes) -> list[Case]:
    cut, gb = experiment.slices, experiment.host_gb
    first = next(iter(experiment.systems))
    slices = [
        Case(part="slices", chip=cut.name, weights=first, host_gb=size, speed=cut.speed,
             settings=(*cut.settings, *experiment.systems[first]))
        for size in gb
    ]  # fmt: skip
    return slices + [
        Case(part="chips", chip=name, weights=weights, host_gb=size, speed=1.0,
             settings=(*chip.all_settings(), *system))
        for weights, system in experiment.systems.items()
        for name, chip in experiment.chips.items()
        for size in (gb[0], gb[-1])
    ]  # fmt: skip


def _run(context: Context, experiment: Prefixes, case: Case) -> dict[str, Any]:
    settings = [
        *case.settings, *experiment.model, *_source(context, experiment, case.speed),
        f"workload.max_total_tokens={experiment.max_total_tokens}",
        f"system.prefix_cache.host_bytes={case.host_gb}e9", f"link={context.link_variant}",
    ]  # fmt: skip
    got = simulate(build(composed(settings, {"seed": context.seeds[0]})))
    stats = got.stats
    hits = {"hbm": stats.prefix_hbm_tokens, "host": stats.prefix_host_tokens}
    lookup_tokens = max(1, stats.prefix_asked_tokens)
    return {
        **{name: getattr(case, name) for name in ("part", "chip", "weights", "host_gb", "speed")},
        "link_gbps": stats.link_capacity_gbps,
        **{
            f"found_{tier}_percent": 100.0 * tokens / lookup_tokens for tier, tokens in hits.items()
        },
        "link_tb": float(stats.chip_link_bytes.sum()) / 1e12,
        "blocks_tb": stats.prefix_loaded_bytes / 1e12,
        "prompt_tokens": got.summary["prompt_tokens"],
        **measures(got),
    }


def _has_trace(context: Context) -> bool:
    return context.traces is not None and (context.traces / TRACE).is_file()


def _source(context: Context, experiment: Prefixes, speed: float) -> tuple[str, ...]:
    if context.traces is not None and _has_trace(context):
        return (
            "workload=file", f"workload.path='{context.traces / TRACE}'",
            "workload.on_bad_row=skip", f"workload.compression={speed}",
        )  # fmt: skip
    load = experiment.conversations
    return (
        "workload=conversations", "workload.models=1", f"workload.rate_rps={speed * load.rate_rps}",
        f"workload.requests={load.requests}",
        f"workload.turns={load.turns}", f"workload.think_s={load.think_s}",
        "workload.block_tokens=512", f"workload.system_tokens={load.system_tokens}",
        "workload.lengths=fixed", f"workload.prompt_tokens={load.text_tokens}",
        f"workload.output_tokens={load.answer_tokens}",
    )  # fmt: skip


def _setup(context: Context, experiment: Prefixes) -> tuple[str, ...]:
    if _has_trace(context):
        load: tuple[str, ...] = (
            "Load: Mooncake's public trace, prompts and answers up to "
            f"{experiment.max_total_tokens:,} tokens.",
        )
    else:
        talk = experiment.conversations
        load = (
            "Load: conversations by the generator; Mooncake's trace is not at hand.",
            f"A conversation has {talk.turns:g} turns of {talk.text_tokens:,} tokens, "
            f"{talk.think_s:g} s apart, and answers of {talk.answer_tokens} tokens.",
            f"All prompts share their first {talk.system_tokens:,} tokens.",
            f"{talk.requests:,} requests arrive at {talk.rate_rps:g} turns/s.",
        )
    return (
        *load,
        f"Models: {', '.join(experiment.model)}.",
        f"(a) Slices get {experiment.slices.speed:g} of the load's speed.",
        "(b) One whole chip gets all of it; the third chip is an H100 with GH200's link.",
        "Over PCIe weights are staged by copy engine; public runs measured "
        f"{load_platform('h100_sxm').link.sm_reads} by host for kernels that read them.",
        *(f"With {name}: {', '.join(talk)}." for name, talk in experiment.systems.items()),
    )


def _finding(rows: Sequence[Mapping[str, Any]]) -> str:
    none, *_, full = (r for r in rows if r["part"] == "slices")
    return (
        f"{full['host_gb']} GB of host memory for prefixes on slices: TTFT p50 "
        f"{_number(none['ttft_p50_s'])} s becomes {_number(full['ttft_p50_s'])} s, "
        f"{full['found_hbm_percent'] + full['found_host_percent']:.0f} % of prompts are found"
    )


def _told(experiment: Prefixes, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    def at(part: str, gb: int, chip: str = "", weights: str = "") -> Mapping[str, Any]:
        return next(
            r for r in rows
            if r["part"] == part and r["host_gb"] == gb and weights in ("", r["weights"])
            and chip in ("", r["chip"])
        )  # fmt: skip

    least, most = experiment.host_gb[0], experiment.host_gb[-1]
    none, full = at("slices", least), at("slices", most)
    hit_tokens = max(1.0, full["found_host_percent"] / 100.0 * full["prompt_tokens"])
    without_mb = 1e6 * none["link_tb"] / none["prompt_tokens"]
    block_mb = 1e6 * full["blocks_tb"] / hit_tokens
    text = [
        f"(a) Without blocks the link carries {_number(without_mb)} MB of weights a prompt token.",
        f"(a) A token found in host memory takes {_number(block_mb)} MB, so that a hit "
        f"{'spares' if block_mb < without_mb else 'burdens'} the link.",
        f"(a) Blocks are {_number(_share(full))} % of the link's bytes with {most} GB.",
    ]
    _, pcie, same_chip = experiment.chips
    for weights in experiment.systems:
        slow, fast = at("chips", most, pcie, weights), at("chips", most, same_chip, weights)
        without = at("chips", least, pcie, weights)
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
    how = "binds" if row["link_percent"] >= 50.0 else "does not bind"
    blocks = _number(_share(row))
    if _share(row) >= 50.0:
        detail = f"{blocks} % of its bytes are blocks"
    else:
        detail = (
            f"{blocks} % of its bytes are blocks, the rest is weights that gave way to KV caches"
        )
    return f"PCIe {how}: it is {_number(row['link_percent'])} % used, and {detail}."


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
