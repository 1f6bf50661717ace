"""Console output of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.config import RunSetup
from c2c.policies import Profiled, policy_name
from c2c.serving import Speculation
from c2c.workloads import describe, doubts
from experiments.near_runs import borrowed, error_line
from experiments.simulation.execute import Outcome, chosen_chunks
from experiments.tables import Name, console, print_line, print_table, print_trimmed

__all__ = [
    "console",
    "print_doubts",
    "print_folder",
    "print_outcome",
    "print_setup",
    "print_verdict",
]

_MODELS_SHOWN = 8


def print_setup(out: Console, setup: RunSetup) -> None:
    """Print the system, fleet and workload of a run."""
    serving, prepared = setup.serving, setup.prepared
    out.print(f"[bold]{serving.system.name}[/] on {serving.fleet_name}, seed {setup.seed}")
    first = 0
    for part in serving.parts:
        link = part.platform.link
        derived = serving.link_variant == "measured" and link.measured_is_derived
        print_line(
            out,
            f"link: {link.name}, variant {serving.link_variant}"
            + (" (derived from the datasheet)" if derived else "")
            + f", {prepared.link_gbps[first]:g} GB/s host to device",
        )
        first += part.count
    for line in borrowed(serving):
        print_line(out, line)
    print_doubts(out, setup)
    bold = doubts(setup.workload)
    lines = [*(note for note in setup.notes if note not in bold), *describe(setup.workload)]
    more = filter(None, [_cache_line(setup), _draft_line(setup.serving.system.speculation)])
    for line in (*lines, *more, *_chunk_lines(setup)):
        print_line(out, line)


def print_doubts(out: Console, setup: RunSetup) -> None:
    """Print important lines in bold."""
    for line in doubts(setup.workload):
        print_line(out, line, "bold")


def _chunk_lines(setup: RunSetup) -> Iterator[str]:
    policy = setup.serving.system.chunk
    rule = "profile table" if isinstance(policy, Profiled) else policy_name(type(policy))
    slices_of: dict[int, dict[str, list[str]]] = {}
    chunks = chosen_chunks(setup)
    for chunk in chunks:
        slices_of.setdefault(chunk["tokens"], {}).setdefault(chunk["model"], []).append(
            chunk["slice"]
        )
    slices = {chunk["slice"] for chunk in chunks}

    def named(models: Mapping[str, list[str]]) -> str:
        return " for " + ", ".join(
            model if len(where) == len(slices) else f"{model} on {' and '.join(where)}"
            for model, where in models.items()
        )

    sizes = (
        f"{size:,}{named(models) if len(slices_of) > 1 else ''}"
        for size, models in slices_of.items()
    )
    if chunks:
        yield f"prefill chunk in tokens: {'; '.join(sizes)} ({rule})"
    if bad := [f"{chunk['model']} on {chunk['slice']}" for chunk in chunks if not chunk["fits"]]:
        yield f"no chunk keeps every limit, so the nearest: {', '.join(bad)}"


def _cache_line(setup: RunSetup) -> str:
    description, is_on = setup.workload.description, setup.prepared.fleet.caches_prefixes
    has_blocks = bool(description.get("blocks")) or description["kind"] in (
        "conversations",
        "agents",
    )
    if is_on and not has_blocks:
        return "prefix cache: on, but no request has hashes of blocks"
    if has_blocks and not is_on:
        return "prefix cache: off, every prompt is computed in full (system.prefix_cache)"
    return ""


def _draft_line(how: Speculation) -> str:
    if not how.tokens:
        return ""
    drafts = ", ".join(f"{model} by {draft}" for model, draft in how.drafts.items())
    return f"speculation: {how.tokens} drafted, {1.0 / how.passes:.2f} tokens a pass ({drafts})"


def _part_line(part: Mapping[str, Any]) -> str:
    used, share = part["utilisation"], part["attainment"]["both"]
    usd = part["usd_per_hour"]
    return (
        f"{part['requests']:,} requests, {_percent(share)}% within both targets; "
        f"link {_percent(used['link_mean'])}%, HBM {_percent(used['hbm_mean'])}%, "
        f"SMs {_percent(used['instance_busy_mean'])}%"
        + ("" if usd is None else f"; {usd:.2f} USD an hour")
    )


def print_outcome(out: Console, setup: RunSetup, outcome: Outcome) -> None:
    """Print a run's summary, the verdict last."""
    summary, run = outcome.summary, outcome.summary["run"]
    print_trimmed(out, _machine_table(summary, run, outcome))
    if prefix := run.get("prefix"):
        print_line(out, _prefix_line(prefix))
    for line in _measured_lines(summary.get("measured", {})):
        print_line(out, line)
    print_table(out, partial(_latency_table, summary), spare=("p95", "goodput"))
    print_line(out, f"error: {error_line(setup.serving, summary)}")
    print_verdict(out, outcome)


def print_verdict(out: Console, outcome: Outcome) -> None:
    """Print the verdict of a run and its bottleneck."""
    for line in (outcome.summary["verdict"] or {}).get("text", ()):
        print_line(out, line, "bold")


def _prefix_line(prefix: Mapping[str, Any]) -> str:
    share_of = {
        name: prefix[f"{name}_tokens"] / prefix["prompt_tokens"] for name in ("hbm", "host")
    }
    return (
        f"prefix cache: found {prefix['found_share']:.1%} of {prefix['prompt_tokens']:,} tokens of "
        f"prompts (HBM {share_of['hbm']:.1%}, host memory {share_of['host']:.1%}); "
        f"{prefix['loaded_bytes'] / 1e9:,.1f} GB read from host memory, "
        f"{prefix['stored_bytes'] / 1e9:,.1f} GB written to it"
    )


def _measured_lines(measured: Mapping[str, Any]) -> Iterator[str]:
    for name, shown in (("ttft_s", _seconds), ("tpot_s", _millis)):
        if one := measured.get(name):
            unit = "s" if name == "ttft_s" else "ms"
            truth, estimate = shown(one["measured"]["p50"]), shown(one["simulated"]["p50"])
            yield (
                f"{name[:4].upper()} p50 of {one['requests']:,} requests with a measured one: "
                f"measured {truth} {unit}, simulated {estimate} {unit}"
            )


def print_folder(out: Console, outcome: Outcome) -> None:
    """Print a run's folder, once on disk."""
    state = "complete already, skipped" if outcome.skipped else "written"
    out.print(f"run folder ({state}): {outcome.folder}", markup=False, soft_wrap=True)


def _latency_table(summary: Mapping[str, Any], without: frozenset[str]) -> Table:
    goodput = "" if "goodput" in without else ", goodput in requests/s"
    table = Table(
        title=f"TTFT in s, TPOT in ms, SLO attainment in %{goodput}",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=0,
    )
    quantiles = [p for p in ("p50", "p95", "p99") if p not in without]
    table.add_column("model", no_wrap=True, min_width=14)
    for name in (
        "requests", "failed",
        *(f"{'TTFT' if p == 'p50' else ''}\n{p}" for p in quantiles),
        *(f"{'TPOT' if p == 'p50' else ''}\n{p}" for p in quantiles),
        "SLO\nTTFT", "\nTPOT", "\nboth", *(["goodput"] if goodput else []),
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    models = sorted(summary["models"].items(), key=lambda item: -item[1]["requests"])
    for name, block in [("all", summary), *models[:_MODELS_SHOWN]]:
        table.add_row(
            Name(name),
            f"{block['requests']:,}",
            f"{block['failed']:,}",
            *(_seconds(block["ttft_s"][p]) for p in quantiles),
            *(_millis(block["tpot_s"][p]) for p in quantiles),
            *(_percent(block["attainment"][t]) for t in ("ttft", "tpot", "both")),
            *([f"{block['goodput_rps']:.3f}"] if goodput else []),
            end_section=name == "all",
        )
    if len(models) > _MODELS_SHOWN:
        table.caption = f"and {len(models) - _MODELS_SHOWN} more models, see summary.json"
    return table


def _cost_row(cost: Mapping[str, Any]) -> list[tuple[str, str]]:
    usd, joules = cost["usd_per_million_tokens"], cost["joules_per_million_tokens"]
    parts = [] if usd is None else [f"{usd:.3g} USD"]
    parts += [] if joules is None else [f"{joules / 1e6:.3g} MJ (mean {cost['power_w']:,.0f} W)"]
    parts += cost["unknown"]
    return [("a million tokens", ", ".join(parts))] if parts else []


def _machine_table(summary: Mapping[str, Any], run: Mapping[str, Any], outcome: Outcome) -> Table:
    used = run["utilisation"]
    starts = ", ".join(f"{kind} {n:,}" for kind, n in summary["starts"].items())
    changes = {"evictions": "evictions", "drains": "drains", "preemptions": "preempted"}
    changed = [(name, run[key]) for name, key in changes.items()]
    rows = [
        (
            "utilisation (mean)",
            f"link {_percent(used['link_mean'])}% (peak {run['link_peak_gbps']:.0f} of "
            f"{run['link_gbps']:g} GB/s), HBM {_percent(used['hbm_mean'])}%, "
            f"SMs busy {_percent(used['instance_busy_mean'])}%",
        ),
        *_cost_row(summary["cost"]),
    ]
    if shares := run.get("resources"):
        rows.append(("in use (mean)", ", ".join(f"{n} {_percent(u)}%" for n, u in shares.items())))
    if "relayouts" in run:
        rows.append((
            "copied and moved",
            f"{run['relayout_bytes'] / 1e9:,.1f} GB of layers and KV caches in "
            f"{run['relayouts']:,} changes, {run['relayout_s']:,.1f} s beside serving",
        ))  # fmt: skip
    rows += [
        (f"{part['chips']} x {part['hardware']}, {part['mig']}", _part_line(part))
        for part in run.get("parts", ())
    ]
    rows.append((
        "requests by start",
        starts + "".join(f", {name} {count:,}" for name, count in changed if count),
    ))  # fmt: skip
    if summary["failures"]:
        failures = ", ".join(f"{why} {n:,}" for why, n in summary["failures"].items())
        rows.append(("failed requests", failures))
    if lost := run.get("failures"):
        down = f"{len(lost['chips']):,}, {lost['down_s']:,.0f} s out of service in all"
        rows.append(("chips lost", down))
    served = (
        f"{run['end_s']:,.1f} s to the last answer, "
        f"{summary['output_tokens_per_s']:,.1f} output tokens/s"
    )
    if (speed := outcome.speed) is not None:
        how = "compiled" if speed.compiled else "interpreted"
        served += f"; took {speed.simulate_s:.2f} s ({speed.requests_per_s:,.0f} requests/s, {how})"
    rows.append(("simulated", served))
    table = Table.grid(padding=(0, 3, 0, 0))
    for row in rows:
        table.add_row(*row)
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _millis(value: float | None) -> str:
    return "-" if value is None else f"{1000 * value:.1f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
