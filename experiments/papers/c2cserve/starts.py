"""Cold start and model switch against ServerlessLLM (C2CServe, Figs. 10 and 11)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from omegaconf import OmegaConf

from c2c.config import build, simulate
from c2c.cost import load_constants
from c2c.hardware import load_platform
from c2c.ranges import Count
from experiments.claims import Result, answer, claim
from experiments.experiment import named
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.c2cserve.baselines import DENSE, MOE
from experiments.papers.c2cserve.settings import GH200, composed

__all__ = ["Starts", "cold_s", "compute_cold", "compute_switch", "switch_s"]

CACHING = ("moe_infinity", "finemoe")  # they serve MoE models only
SHORT = {"serverlessllm": "sllm", "moe_infinity": "moeinf"}
# Numbers of Fig. 11 that are inputs; Aegaeon's follows from the bytes that it copies.
FITTED = ("c2cserve", "serverlessllm", "moe_infinity", "finemoe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """Experiment: settings by system, and each model's systems."""

    runs: dict[str, tuple[str, ...]]
    systems: dict[str, tuple[str, ...]]
    prompt_tokens: Count

    def __post_init__(self) -> None:
        for systems in self.systems.values():
            for system in systems:
                named(self.runs, system, "runs")


@figure("fig10", title="Fig. 10: cold start", experiment=Starts, draw=".drawing.serving.draw_fig10",
        needs=SIMULATOR)  # fmt: skip
def compute_cold(context: Context, experiment: Starts) -> Computed:
    """Return one request's TTFT for a model on disk."""
    rows: list[dict[str, Any]] = []
    for model, systems in experiment.systems.items():
        for system in systems:
            (first,) = _requests(context, experiment, [model], system, "disk")
            rows.append(
                {
                    "model": model,
                    "system": system,
                    "start_s": first["started_s"] - first["arrival_s"],
                    "ttft_s": first["first_token_s"] - first["arrival_s"],
                }
            )
    ttft = {(r["model"], r["system"]): r["ttft_s"] for r in rows}
    speedup = {m: ttft[m, "serverlessllm"] / ttft[m, "c2cserve"] for m in experiment.systems}
    disk = load_platform("gh200").host.disk_gbps
    why = (
        f"Starting a runtime from scratch takes {load_constants().engine_init_s:.2f} s, vLLM's "
        "loading phase without weights as MEDUSA prints it; C2CServe prints none."
    )
    caption = (
        "Bars: time from arrival to first token of one request for a model on disk, on an idle "
        f"GH200 with link variant '{context.link_variant}'. Below: C2CServe's speed-up over "
        "ServerlessLLM."
    )
    assumptions = (
        f"The request has a prompt of {experiment.prompt_tokens} tokens.",
        f"The disk reads {disk:g} GB/s, which is an assumption.",
        *(f"{system}: {', '.join(settings)}." for system, settings in experiment.runs.items()),
        why,
        "Activating a model takes the time that Fig. 11 shows.",
        "MoE-Infinity and FineMoE read the checkpoint at the rate that was fitted to Fig. 11.",
    )

    def result(name: str, ours: Any) -> Result:
        figure = "" if name.startswith("abstract.") else "fig10."
        return answer(
            f"c2cserve.{figure}{name}",
            ours,
            f"{why} That every system pays it (section 9.2.2) was settled after a first "
            "version, in which ServerlessLLM did not, had disagreed for dense models.",
            sample="in-sample",
            link_variant=context.link_variant,
        )

    dense = sorted(speedup[m] for m in DENSE)
    caching = [
        f(ttft[m, s] / ttft[m, "c2cserve"] for m in MOE for s in CACHING) for f in (min, max)
    ]
    return Computed(
        tables={
            "cold": pa.Table.from_pylist(rows),
            "speedup": pa.Table.from_pylist(
                [{"model": m, "speedup": v, "published": _printed(m)} for m, v in speedup.items()]
            ),
        },
        results=(
            result("dense.vs_sllm", dense),
            result("qwen3_30b.vs_sllm", speedup["qwen3-30b-a3b"]),
            result(
                "dense.vs_aegaeon_max",
                max(ttft[m, "aegaeon"] / ttft[m, "c2cserve"] for m in DENSE),
            ),
            result("moe.vs_moeinf_finemoe", caching),
            result(
                "abstract.coldstart.dense_max",
                max(
                    ttft[m, s] / ttft[m, "c2cserve"]
                    for m in DENSE
                    for s in experiment.systems[m][1:]
                ),
            ),
            result("abstract.coldstart.moe_max", max(caching)),
        ),
        caption=caption,
        finding=f"Cold starts of C2CServe are {min(speedup.values()):.2g} to "
        f"{max(speedup.values()):.2g} times as fast as ServerlessLLM's: all read the same disk",
        assumptions=assumptions,
    )


def _printed(model: str) -> str:
    if model in DENSE:
        low, high = claim("c2cserve.fig10.dense.vs_sllm").value
        return f"{low}-{high}"
    return str(claim("c2cserve.fig10.qwen3_30b.vs_sllm").value) if "qwen3" in model else ""


@figure("fig11", title="Fig. 11: model switch", experiment=Starts,
        draw=".drawing.serving.draw_fig11", needs=SIMULATOR)  # fmt: skip
def compute_switch(context: Context, experiment: Starts) -> Computed:
    """Return the time from host memory onto a busy slice."""
    rows: list[dict[str, Any]] = []
    for kind, models, other in (("dense", DENSE, DENSE), ("moe", MOE, (DENSE[0],))):
        for model in models:
            for system in experiment.systems[model]:
                others = MOE if system in CACHING else other
                rival = next(m for m in others if m != model)
                rows.append(
                    {
                        "model": model,
                        "kind": kind,
                        "system": system,
                        "switch_ms": 1e3 * switch_s(context, experiment, rival, model, system),
                    }
                )
    fitted = {"dense": "llama-3-8b", "moe": "qwen3-30b-a3b"}
    by_key = {(r["model"], r["system"]): r["switch_ms"] for r in rows}
    results = [
        answer(
            f"c2cserve.fig11.{kind}.{SHORT.get(system, system)}",
            by_key[model, system],
            f"Fitted ({model})." if system in FITTED else "Bytes over the link, no constant.",
            sample="in-sample" if system in FITTED else "out-of-sample",
            link_variant=context.link_variant,
        )
        for kind, model in fitted.items()
        for system in experiment.systems[model]
    ]
    orders = [
        math.log10(by_key[m, "serverlessllm"] / by_key[m, "c2cserve"]) for m in fitted.values()
    ]
    results.append(
        answer(
            "c2cserve.fig11.orders",
            sorted(orders),
            "Against ServerlessLLM; follows from fitted switch times.",
            sample="in-sample",
            link_variant=context.link_variant,
        )
    )
    for row in rows:
        row["published_ms"] = None
        if row["model"] == fitted[row["kind"]]:
            short = SHORT.get(row["system"], row["system"])
            row["published_ms"] = float(claim(f"c2cserve.fig11.{row['kind']}.{short}").value)
    caption = (
        "Bars: time to bring a model from host memory onto a GPU that ran another model, link "
        f"variant '{context.link_variant}'. Diamonds: the paper's values, to which all bars beside "
        "them but Aegaeon's are fitted."
    )
    assumptions = (
        "Every system has the full GPU.",
        "All printed times but Aegaeon's are inputs of the cost model, so they are in-sample.",
        "The paper names no model for its times; they are taken as those of Llama-3 8B and "
        "Qwen3-30B-A3B.",
        "C2CServe's other models take the same fitted time.",
        "The other systems' other times follow from the bytes that they copy or read.",
        "MoE-Infinity and FineMoE start anew from disk: their printed 105 and 128 s correspond to "
        "reading a checkpoint at 0.58 and 0.48 GB/s.",
    )
    return Computed(
        tables={"switch": pa.Table.from_pylist(rows)},
        results=tuple(results),
        caption=caption,
        finding=_switch_finding(rows),
        assumptions=assumptions,
    )


def _switch_finding(rows: Sequence[dict[str, Any]]) -> str:
    ours = [r["switch_ms"] for r in rows if r["system"] == "c2cserve"]
    others = [r["switch_ms"] for r in rows if r["system"] != "c2cserve"]
    return (
        f"C2CServe switches models in {min(ours):.0f} to {max(ours):.0f} ms, the others in "
        f"{min(others) / 1e3:.2g} to {max(others) / 1e3:.3g} s"
    )


def cold_s(context: Context, experiment: Starts, model: str, system: str) -> float:
    """Return one request's TTFT in seconds for a model on disk."""
    (first,) = _requests(context, experiment, [model], system, "disk")
    return float(first["first_token_s"] - first["arrival_s"])


def switch_s(context: Context, experiment: Starts, rival: str, model: str, system: str) -> float:
    """Return the seconds from host memory onto a rival's GPU."""
    served = _requests(context, experiment, [rival, model], system, "host")
    request = next(r for r in served if r["model"] == model)
    return float(request["started_s"] - request["arrival_s"])


def _requests(
    context: Context,
    experiment: Starts,
    models: Sequence[str],
    system: str,
    weights_start: str,
) -> list[dict[str, Any]]:
    settings = composed(
        [
            *GH200,
            f"system={system}",
            *experiment.runs[system],
            f"link={context.link_variant}",
            f"weights_start={weights_start}",
            "system.check_slo=false",
            "workload=deterministic",
            f"workload.requests={len(models)}",
            "workload.rate_rps=0.001",
            f"workload.prompt_tokens={experiment.prompt_tokens}",
            "workload.output_tokens=1",
        ]
    )
    OmegaConf.update(settings, "catalog", {"models": [{"spec": m} for m in models]}, merge=False)
    result: list[dict[str, Any]] = simulate(build(settings), compiled=False).requests.to_pylist()
    return result
