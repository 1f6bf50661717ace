"""Loading phases and cold starts (MEDUSA, Table 1, Figs. 1, 2, 7 and 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.cost import load_constants
from c2c.errors import unknown_name
from c2c.models import ModelSpec
from c2c.systems.medusa import (
    STARTS,
    Stages,
    graph_nodes,
    launched_extra_s,
    load_measured_start,
    loaded_bytes,
    loading_s,
    plan_of,
    schedule,
    stages_of,
)
from experiments.claims import Result, answer, claim
from experiments.figure import SYSTEMS, Computed, Context, figure
from experiments.papers.medusa.models import MODELS, TableModel, table_models

__all__ = ["Loading", "compute"]

_PRINTED: Final = "qwen15_4b"  # model whose stages are printed
_INPUTS = (
    "The paper's stages of Qwen1.5 4B are inputs.",
    "The share of MEDUSA's last stage that overlaps with the weights is fitted to fig8c.vs_vllm "
    "(in-sample).",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Experiment of Fig. 8: models of Table 1, and the drawn one."""

    models: tuple[str, ...]
    shown: str

    def __post_init__(self) -> None:
        table_models(self.models)
        if self.shown not in self.models:
            raise unknown_name("experiment.shown", self.shown, self.models)


@figure("medusa.fig8", title="MEDUSA, Figs. 1, 2, 7, 8, Table 1: loading phases",
        experiment=Loading, draw=".drawing.draw_timeline", needs=SYSTEMS)  # fmt: skip
def compute(context: Context, experiment: Loading) -> Computed:
    """Return timelines by model and start, and means."""
    del context  # depends on neither links nor traces
    measured = load_measured_start()
    stages = {model: stages_of(model.load(), measured) for model in table_models(experiment.models)}
    model_stages = next(s for m, s in stages.items() if m.row == experiment.shown)
    rows = [_row(model, s) for model, s in stages.items()]
    spans = [
        {
            "model": experiment.shown,
            "start": start,
            "stage": span.stage.name,
            "on": next(iter(span.stage.draws)),
            "begin_s": span.begin_s,
            "end_s": span.end_s,
        }
        for start in STARTS
        for span in schedule(plan_of(start, model_stages))
    ]
    cuts = [100 * r["vs_vllm"] for r in rows]
    assumptions = (
        *_INPUTS,
        "Starts are vLLM, vLLM with weights loaded beside the rest (async), vLLM without graphs, "
        "and MEDUSA.",
        "Stages of the other models follow from their size and layers.",
        "Weights load at the drives' rate.",
        f"Capture takes reads of the weights and launches of {measured.batch_sizes} x (11 layers + "
        "2) nodes.",
        "Tokenizer and profiling of each model are those of the authors' artefact.",
        "Structure takes the same time for every model.",
    )
    return Computed(
        tables={
            "models": pa.Table.from_pylist(rows),
            "timeline": pa.Table.from_pylist(spans),
        },
        results=(
            *(_of_models(rows) if len(rows) == len(MODELS) else ()),
            *chain(
                *(
                    _of_one(r, model_stages)
                    for r in rows
                    if r["model"] == experiment.shown == _PRINTED
                )
            ),
            *_table1(rows),
        ),
        finding=(
            f"MEDUSA cuts vLLM's loading phase by {np.mean(cuts):.0f} % in the mean over "
            f"{len(rows)} models ({min(cuts):.0f} to {max(cuts):.0f} %)"
        ),
        caption=(
            "Left: stages of one model's loading phase by start. Right: loading phase of each "
            "model by start."
        ),
        assumptions=assumptions,
    )


def _row(model: TableModel, stages: Stages) -> dict[str, Any]:
    spec = model.load()
    load = {start: loading_s(start, stages) for start in STARTS}
    around = stages.runtime_s + stages.first_token_s
    return {
        "model": model.row,
        "param_gib": loaded_bytes(spec) / 2**30,
        "nodes": graph_nodes(spec),
        "printed_nodes": model.nodes,
        **{f"{start}_s": seconds for start, seconds in load.items()},
        "kv_share": stages.kv_profiled_s / load["vllm"],
        "capture_share": stages.captured_s / load["vllm"],
        "graph_speedup": _graph_speedup(spec),
        "has_bubble": stages.weights_s < stages.tokenizer_s + stages.kv_profiled_s,
        "vs_vllm": 1 - load["medusa"] / load["vllm"],
        "vs_async": 1 - load["medusa"] / load["vllm_async"],
        "cold_reduction": 1 - (load["medusa"] + around) / (load["vllm"] + around),
        "runtime_s": stages.runtime_s,
        "first_token_s": stages.first_token_s,
    }


def _graph_speedup(spec: ModelSpec) -> float:
    graph_s = loaded_bytes(spec) / (load_measured_start().hbm_gbps * 1e9)
    graph_s += load_constants("a100_80").step_overhead_s  # the same host and engine
    return 1 + launched_extra_s(spec, load_measured_start()) / graph_s


def _of_models(rows: Sequence[Mapping[str, Any]]) -> tuple[Result, ...]:
    def mean(name: str) -> float:
        return 100 * float(np.mean([r[name] for r in rows]))

    both = 100 * float(np.mean([r["kv_share"] + r["capture_share"] for r in rows]))
    cold = {r["model"]: 100 * r["cold_reduction"] for r in rows}
    phase = "Taken to be of cold starts: of loading phases, 42.9 and 21.1 do not average 42.5."
    bubbles = sum(r["has_bubble"] for r in rows)
    fastest = max(rows, key=lambda r: float(r["graph_speedup"]))
    answers = {
        "abstract.loading_reduction": (mean("vs_vllm"), ""),
        "fig7a.vs_vllm": (mean("vs_vllm"), ""),
        "fig7a.vs_async": (mean("vs_async"), ""),
        "fig7b.coldstart": (mean("cold_reduction"), ""),
        "sec72.best": (max(cold.values()), f"{phase} Ours: {max(cold, key=cold.__getitem__)}."),
        "sec72.worst": (min(cold.values()), f"{phase} Ours: {min(cold, key=cold.__getitem__)}."),
        "fig2.kv_init_share": (mean("kv_share"), "Mean over the ten models."),
        "fig2.capture_share": (mean("capture_share"), "Mean over the ten models."),
        "fig2.both_share_avg": (both, ""),
        "sec23.capture_share_avg": (mean("capture_share"), ""),
        "sec24.weights_dont_cover": (100 * bubbles / len(rows), ""),
        "fig8b.models_with_bubble": (bubbles, ""),
        "fig3.graph_speedup_max": (
            fastest["graph_speedup"],
            f"{fastest['model']}, decode of one sequence. A launch costs half of what a node of a "
            "capture does and runs beside the GPU; the host's other work of a step is that of a "
            "newer engine.",
        ),
    }
    return tuple(_result(name, value, note) for name, (value, note) in answers.items())


def _of_one(row: Mapping[str, Any], own: Stages) -> tuple[Result, ...]:
    cold = row["runtime_s"] + row["vllm_s"] + row["first_token_s"]
    delayed = own.weights_s + own.weights_delay_s
    bubble = own.tokenizer_s + own.kv_profiled_s - delayed
    order = [span.stage.name for span in schedule(plan_of("medusa", own))]
    beside = {"weights", "tokenizer", "first_layer"}
    spans = {span.stage.name: span for span in schedule(plan_of("medusa", own))}
    overlaps = spans["first_layer"].begin_s < spans["weights"].end_s
    printed = "An input."
    arithmetic = "Arithmetic on printed stages."
    rule = {
        "order": claim("medusa.fig8c.overlap").value["order"]
        if order[:2] == ["structure", "kv_restore"] and overlaps and beside <= set(order)
        else order
    }
    inputs = {
        "fig8a.structure_init": own.structure_s,
        "fig8a.weights": own.weights_s,
        "fig8a.tokenizer": own.tokenizer_s,
        "fig8a.kv_init": own.kv_profiled_s,
        "fig8a.capture": own.captured_s,
        "fig8b.weight_interference": own.weights_delay_s,
        "fig8c.kv_init": own.kv_restored_s,
        "fig8c.capture": own.restored_s,
        "fig8a.total": row["vllm_s"],
    }
    shares = {
        "fig1.loading_share": 100 * row["vllm_s"] / cold,
        "fig1.first_token_share": 100 * row["first_token_s"] / cold,
    }
    within = {
        "fig1.runtime_init_share": 100 * row["runtime_s"] / cold,
        "fig1.kv_plus_capture_share": 100 * (row["kv_share"] + row["capture_share"]),
        "fig8b.reduction": 100 * (1 - row["vllm_async_s"] / row["vllm_s"]),
        "fig8b.bubble": bubble,
        "fig8c.vs_vllm": 100 * row["vs_vllm"],
        "fig8c.vs_async": 100 * row["vs_async"],
    }
    return (
        *(_result(name, value, printed, "in-sample") for name, value in inputs.items()),
        *(_result(name, value, arithmetic, "in-sample") for name, value in within.items()),
        *(
            _result(name, value, "First token: launches and one read of the weights.")
            for name, value in shares.items()
        ),
        _result("fig8c.overlap", rule, "What the schedule of the plan gives.", "in-sample"),
        _result(
            "setup.async_definition",
            claim("medusa.setup.async_definition").value
            if _runs_beside("weights", ("tokenizer", "kv_profile"), own)
            else {"parallel": "no"},
            "What the schedule of the plan vllm_async gives.",
            "in-sample",
        ),
    )


def _runs_beside(name: str, others: Sequence[str], stages: Stages) -> bool:
    spans = {span.stage.name: span for span in schedule(plan_of("vllm_async", stages))}
    ends = [spans[name].begin_s, *(spans[other].end_s for other in others)]
    return all(spans[o].begin_s == end for o, end in zip(others, ends, strict=False))


def _table1(rows: Sequence[Mapping[str, Any]]) -> tuple[Result, ...]:
    return tuple(
        _result(
            f"table1.{row['model']}",
            {"param_gb": row["param_gib"], "graph_nodes": row["nodes"]},
            "GiB from public configurations, with an output matrix; nodes: 35 x (11 layers + 2).",
        )
        for row in rows
    )


def _result(name: str, ours: Any, note: str, sample: Any = "out-of-sample") -> Result:
    claim_id = f"medusa.{name}"
    return answer(claim_id, ours, note, sample=sample)
