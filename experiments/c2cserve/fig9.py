"""Average TTFT and TPOT of C2CServe and the systems it is compared with (C2CServe, Fig. 9)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.hardware import load_platform
from c2c.models import load_spec, weight_bytes
from experiments.c2cserve.baselines import DENSE, MOE, NAMES, PROMPT, serve_alone
from experiments.c2cserve.context import Computed, Context
from experiments.claims import Result

__all__ = ["compute"]

OUTPUT: Final = 64
SEVENTY: Final = "llama-3-70b"
SYSTEMS: Final = {
    **dict.fromkeys((*DENSE, SEVENTY), ("c2cserve", "serverlessllm", "aegaeon")),
    **dict.fromkeys(MOE, ("c2cserve", "serverlessllm", "moe_infinity", "finemoe")),
}


def compute(context: Context) -> Computed:
    """Return TTFT and TPOT of each model on each system, and the answers to the claims."""
    rows: list[dict[str, Any]] = []
    pairs = [(m, s) for m, systems in SYSTEMS.items() for s in systems]
    for done, (model, system) in enumerate(pairs):
        got = serve_alone(context, model, system, output=OUTPUT, requests=3)
        rows.append(
            {
                "model": model,
                "system": system,
                "ttft_s": got.ttft_s,
                "tpot_s": got.tpot_s,
                "out_of_memory": got.failed > 0,
                "experts_found": got.found_share,
            }
        )
        if context.progress is not None:
            context.progress(done + 1, len(pairs))
    caption = (
        f"Requests of {PROMPT} prompt and {OUTPUT} output tokens one after another on a whole "
        f"GH200, engine there, link variant '{context.link_variant}'. The prompt is the 95th "
        "percentile of ShareGPT's, whose lengths and which percentile the paper's section 9.1 "
        f"names; it states neither load nor batch. {_why()}"
    )
    return Computed(
        tables={"latency": pa.Table.from_pylist(rows)},
        results=_results(context, rows),
        caption=caption,
        report=_report(rows),
    )


def _why() -> str:
    """Say why TPOT cannot equal that of resident weights."""
    platform = load_platform("gh200")
    size = float(weight_bytes(load_spec("llama-3-8b"))) / 1e9
    link = platform.link.datasheet_gbps
    return (
        f"TPOT cannot equal ServerlessLLM's at one request: {size:.1f} GB take "
        f"{1e3 * size / link:.0f} ms over the link at its datasheet's {link:g} GB/s and "
        f"{1e3 * size / platform.gpu.hbm_gbps:.0f} ms from HBM."
    )


def _results(context: Context, rows: list[dict[str, Any]]) -> tuple[Result, ...]:
    of = {(r["model"], r["system"]): r for r in rows}

    def mean(system: str, what: str) -> float:
        return float(np.mean([of[m, system][what] for m in DENSE]))

    def ratio(model: str, system: str, what: str) -> float:
        return float(of[model, system][what] / of[model, "c2cserve"][what])

    def result(name: str, ours: Any, unit: str, note: str = "") -> Result:
        return Result(
            claim_id=f"c2cserve.fig9.{name}",
            ours=ours,
            unit=unit,
            sample="out-of-sample",
            link_variant=context.link_variant,
            note=note or "One request at a time, engine there: the load is not printed.",
        )

    qwen, mixtral = "qwen3-30b-a3b", "mixtral-8x7b"
    ttft = {s: of[mixtral, s]["ttft_s"] for s in SYSTEMS[mixtral]}
    return (
        result("dense.tpot_vs_sllm", mean("c2cserve", "tpot_s") / mean("serverlessllm", "tpot_s"),
               "x", _why()),
        result("dense.ttft_vs_aegaeon", mean("aegaeon", "ttft_s") / mean("c2cserve", "ttft_s"),
               "x"),
        result("dense.tpot_vs_aegaeon", mean("aegaeon", "tpot_s") / mean("c2cserve", "tpot_s"),
               "x"),
        result("llama70b.oom", {
            "ServerlessLLM": of[SEVENTY, "serverlessllm"]["out_of_memory"],
            "Aegaeon": of[SEVENTY, "aegaeon"]["out_of_memory"],
            "C2CServe": of[SEVENTY, "c2cserve"]["out_of_memory"],
        }, "bool", "Requests of a model that fits no slice fail; each system's own."),
        result("qwen3_30b.ttft_vs_sllm", ratio(qwen, "serverlessllm", "ttft_s"), "x"),
        result("qwen3_30b.ttft_vs_moeinf", ratio(qwen, "moe_infinity", "ttft_s"), "x"),
        result("qwen3_30b.ttft_vs_finemoe", ratio(qwen, "finemoe", "ttft_s"), "x"),
        result("mixtral.ttft_order", {
            "lowest": NAMES[min(ttft, key=lambda s: ttft[s])],
            "c2cserve": ttft["c2cserve"],
            "finemoe": ttft["finemoe"],
        }, "relation"),
        result("dense.ttft_vs_sllm",
               {s: mean(s, "ttft_s") for s in ("c2cserve", "serverlessllm")}, "relation"),
        result("mixtral.tpot_vs_moeinf",
               {"c2cserve_over_moe_infinity": 1.0 / ratio(mixtral, "moe_infinity", "tpot_s")},
               "relation"),
        result("moe.tpot_vs_sllm",
               {"serverlessllm": all(ratio(m, "serverlessllm", "tpot_s") < 1.0 for m in MOE)},
               "relation"),
        result("moe.tpot_vs_finemoe",
               sorted(ratio(m, "finemoe", "tpot_s") for m in MOE), "x"),
    )  # fmt: skip


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
