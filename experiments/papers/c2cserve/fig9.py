"""Mean TTFT and TPOT of lone requests (C2CServe, Fig. 9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.models import load_spec, weight_bytes
from c2c.ranges import Count
from experiments.claims import Result, answer, claim
from experiments.claims.robust import readings_table, under_all
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.c2cserve.baselines import (
    DENSE,
    MOE,
    NAMES,
    chunk_settings,
    engine_settings,
    serve_alone,
)
from experiments.papers.c2cserve.settings import gh200_of_the_paper

__all__ = ["answered", "compute"]

SEVENTY: Final = "llama-3-70b"

# (model, system, latency) -> claim with the printed ratio to C2CServe's latency.
RATIOS: Final = {
    ("dense", "aegaeon", "ttft"): "dense.ttft_vs_aegaeon",
    ("dense", "aegaeon", "tpot"): "dense.tpot_vs_aegaeon",
    ("dense", "serverlessllm", "tpot"): "dense.tpot_vs_sllm",  # 1, so its inverse is the same
    ("qwen3-30b-a3b", "serverlessllm", "ttft"): "qwen3_30b.ttft_vs_sllm",
    ("qwen3-30b-a3b", "moe_infinity", "ttft"): "qwen3_30b.ttft_vs_moeinf",
    ("qwen3-30b-a3b", "finemoe", "ttft"): "qwen3_30b.ttft_vs_finemoe",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OneByOne:
    """Experiment: requests of one model after another."""

    systems: dict[str, tuple[str, ...]]
    prompt_tokens: Count
    output_tokens: Count
    requests: Count


@figure("fig9", title="Fig. 9: average TTFT and TPOT", experiment=OneByOne,
        draw=".drawing.baselines.draw_fig9", needs=SIMULATOR)  # fmt: skip
def compute(context: Context, experiment: OneByOne) -> Computed:
    """Return TTFT and TPOT by model and system, and the claims."""
    served: dict[tuple[str, ...], dict[str, Any]] = {}

    def rows_under(engine: str = "gpu_bound", chunk: str | int = "table") -> list[dict[str, Any]]:
        rows = []
        for model, system in pairs:
            more = (*engine_settings(system, engine), *chunk_settings(system, chunk))
            key = (model, system, *more)
            if key not in served:
                served[key] = _served(context, experiment, model, system, more)
            rows.append(served[key])
        return rows

    pairs = [(model, system) for model, names in experiment.systems.items() for system in names]
    rows = rows_under()
    rows = [row | _printed(row, rows) for row in rows]
    results = under_all(
        lambda **reading: answered(context, rows_under(**reading)), ("engine", "chunk"), "c2cserve"
    )
    caption = (
        "Bars: mean TTFT and TPOT of requests that are served one at a time on a whole GH200, link "
        f"variant '{context.link_variant}'. Diamonds: our C2CServe times the ratio that the paper "
        "prints."
    )
    assumptions = (
        f"Requests have {experiment.prompt_tokens} prompt tokens and {experiment.output_tokens} "
        "output tokens.",
        "The engine has started before the first request.",
        "The prompt is the 95th percentile of ShareGPT's lengths, both of which section 9.1 names.",
        "The paper states neither load nor batch, and prints ratios only.",
        "Every engine and chunk of experiments/claims/readings.yaml is computed, too.",
        _why(),
    )
    return Computed(
        tables={"latency": pa.Table.from_pylist(rows), "readings": readings_table(results)},
        results=results,
        caption=caption,
        finding=_finding(rows),
        assumptions=assumptions,
        report=_report(rows),
    )


def _served(
    context: Context, experiment: OneByOne, model: str, system: str, more: tuple[str, ...]
) -> dict[str, Any]:
    got = serve_alone(
        context, model, system, output=experiment.output_tokens, prompt=experiment.prompt_tokens,
        requests=experiment.requests, overrides=more,
    )  # fmt: skip
    return {
        "model": model,
        "system": system,
        "ttft_s": got.ttft_s,
        "tpot_s": got.tpot_s,
        "out_of_memory": got.failed > 0,
        "experts_found": got.found_share,
    }


def _finding(rows: Sequence[Mapping[str, Any]]) -> str:
    row_of = {(r["model"], r["system"]): r for r in rows if not r["out_of_memory"]}
    ratios = {
        metric: [
            row[metric] / row_of[model, "serverlessllm"][metric]
            for (model, system), row in row_of.items()
            if system == "c2cserve" and (model, "serverlessllm") in row_of
        ]
        for metric in ("ttft_s", "tpot_s")
    }
    if not ratios["ttft_s"]:
        return "No model is served by both C2CServe and ServerlessLLM"
    ttft, tpot = (f"{min(v):.2g} to {max(v):.2g}" for v in ratios.values())
    return (
        f"One at a time, C2CServe's TTFT is {ttft} times ServerlessLLM's, whose weights are in "
        f"HBM, and its TPOT {tpot} times"
    )


def _printed(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    model, system = row["model"], row["system"]
    ours = next((r for r in rows if (r["model"], r["system"]) == (model, "c2cserve")), None)
    result: dict[str, Any] = {}
    for metric in ("ttft", "tpot"):
        name = RATIOS.get(("dense" if model in DENSE else model, system, metric))
        ratio = None if name is None else float(claim(f"c2cserve.fig9.{name}").value)
        result[f"published_{metric}_s"] = ratio * ours[f"{metric}_s"] if ratio and ours else None
    return result


def _why() -> str:
    platform = gh200_of_the_paper()
    size = float(weight_bytes(load_spec("llama-3-8b"))) / 1e9
    link = platform.link.datasheet_gbps
    return (
        f"TPOT cannot equal ServerlessLLM's at one request: {size:.1f} GB take "
        f"{1e3 * size / link:.0f} ms over the link at its datasheet's {link:g} GB/s and "
        f"{1e3 * size / platform.gpu.hbm_gbps:.0f} ms from HBM."
    )


def answered(context: Context, rows: Sequence[Mapping[str, Any]]) -> tuple[Result, ...]:
    """Return answers to claims with all models and systems among the rows."""
    row_of = {(r["model"], r["system"]): r for r in rows}
    qwen, mixtral = MOE
    dense, moe = (
        ("c2cserve", "serverlessllm", "aegaeon"),
        ("c2cserve", "serverlessllm", "moe_infinity", "finemoe"),
    )

    def mean(system: str, column: str) -> float:
        return float(np.mean([row_of[m, system][column] for m in DENSE]))

    def over(model: str, system: str, column: str) -> float:
        return float(row_of[model, system][column] / row_of[model, "c2cserve"][column])

    def ttft_order() -> dict[str, Any]:
        ttft = {s: row_of[mixtral, s]["ttft_s"] for s in moe}
        return {
            "lowest": NAMES[min(ttft, key=lambda s: ttft[s])],
            "c2cserve": ttft["c2cserve"],
            "finemoe": ttft["finemoe"],
        }

    answers: tuple[tuple[str, Sequence[str], Sequence[str], Callable[[], Any]], ...] = (
        ("dense.tpot_vs_sllm", DENSE, ("c2cserve", "serverlessllm"),
         lambda: mean("c2cserve", "tpot_s") / mean("serverlessllm", "tpot_s")),
        ("dense.ttft_vs_aegaeon", DENSE, ("c2cserve", "aegaeon"),
         lambda: mean("aegaeon", "ttft_s") / mean("c2cserve", "ttft_s")),
        ("dense.tpot_vs_aegaeon", DENSE, ("c2cserve", "aegaeon"),
         lambda: mean("aegaeon", "tpot_s") / mean("c2cserve", "tpot_s")),
        ("llama70b.oom", (SEVENTY,), dense,
         lambda: {NAMES[s]: row_of[SEVENTY, s]["out_of_memory"] for s in dense}),
        ("qwen3_30b.ttft_vs_sllm", (qwen,), ("c2cserve", "serverlessllm"),
         lambda: over(qwen, "serverlessllm", "ttft_s")),
        ("qwen3_30b.ttft_vs_moeinf", (qwen,), ("c2cserve", "moe_infinity"),
         lambda: over(qwen, "moe_infinity", "ttft_s")),
        ("qwen3_30b.ttft_vs_finemoe", (qwen,), ("c2cserve", "finemoe"),
         lambda: over(qwen, "finemoe", "ttft_s")),
        ("mixtral.ttft_order", (mixtral,), moe, ttft_order),
        ("dense.ttft_vs_sllm", DENSE, ("c2cserve", "serverlessllm"),
         lambda: {s: mean(s, "ttft_s") for s in ("c2cserve", "serverlessllm")}),
        ("mixtral.tpot_vs_moeinf", (mixtral,), ("c2cserve", "moe_infinity"),
         lambda: {"c2cserve_over_moe_infinity": 1.0 / over(mixtral, "moe_infinity", "tpot_s")}),
        ("moe.tpot_vs_sllm", MOE, ("c2cserve", "serverlessllm"),
         lambda: {"serverlessllm": all(over(m, "serverlessllm", "tpot_s") < 1.0 for m in MOE)}),
        ("moe.tpot_vs_finemoe", MOE, ("c2cserve", "finemoe"),
         lambda: sorted(over(m, "finemoe", "tpot_s") for m in MOE)),
    )  # fmt: skip
    notes = {
        "dense.tpot_vs_sllm": _why(),
        "llama70b.oom": "Requests of a model that fits no slice fail; each system's own.",
    }
    return tuple(
        answer(
            f"c2cserve.fig9.{name}",
            ours(),
            notes.get(name, "One request at a time, engine started; the load is not printed."),
            link_variant=context.link_variant,
        )
        for name, models, systems, ours in answers
        if all((m, s) in row_of for m in models for s in systems)
    )


def _report(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], ...]:
    head = ("model", "system", "TTFT s", "TPOT ms", "experts found %")
    body = [
        (
            r["model"],
            NAMES[r["system"]],
            "out of memory" if r["out_of_memory"] else f"{r['ttft_s']:.3f}",
            "" if r["out_of_memory"] else f"{1e3 * r['tpot_s']:.1f}",
            f"{100 * r['experts_found']:.0f}" if r["system"] in ("moe_infinity", "finemoe") else "",
        )
        for r in rows
    ]
    return (head, *body)
