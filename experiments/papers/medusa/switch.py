"""C2CServe's switch with captured or restored graphs (beyond both papers)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from omegaconf import OmegaConf

from c2c.config import build, load, simulate
from experiments.figure import SIMULATOR, Computed, Context, figure

__all__ = ["Switches", "compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Experiment: models of a slice's switches, and rows' settings."""

    models: tuple[str, ...]
    settings: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]


@figure("medusa.switch", title="MEDUSA under C2CServe's switch",
        experiment=Switches, draw=".drawing.draw_switch", needs=SIMULATOR, beyond=True)  # fmt: skip
def compute(context: Context, experiment: Switches) -> Computed:
    """Return the time from arrival to computation on another model's slice."""
    rows = [
        {"row": row, "model": model, "switch_s": seconds}
        for row, settings in context.each(list(experiment.rows.items()))
        for model, seconds in _switches(context, experiment, settings).items()
    ]
    caption = (
        "Bars: seconds from arrival to the first computation of a model whose slice ran another "
        f"one, link variant '{context.link_variant}'; by system, with graphs captured or restored."
    )
    assumptions = (
        "The model is in host memory, and the slice is a whole GH200.",
        "C2CServe as printed has no graphs to make.",
        "C2CServe with graphs adds the KV cache and the graphs: profiled and captured, or "
        "restored.",
        "Stages take MEDUSA's printed times on an A100, which are mostly host time.",
        "The stages are unmeasured on a GH200.",
    )
    return Computed(
        tables={"switch": pa.Table.from_pylist(rows)},
        results=(),
        finding=_finding(rows, experiment),
        caption=caption,
        assumptions=assumptions,
    )


def _finding(rows: Sequence[Mapping[str, Any]], experiment: Switches) -> str:
    mean_s = {
        start: float(np.mean(times_s))
        for start in ("medusa", "vllm")
        if (
            times_s := [
                r["switch_s"] for r in rows if experiment.rows[r["row"]][-1].endswith(f"/{start}")
            ]
        )
    }
    if len(mean_s) < 2:
        return ""
    return (
        f"A switch takes {mean_s['medusa']:.2g} s with restored graphs and {mean_s['vllm']:.2g} s "
        "with captured ones, in the mean over models and systems"
    )


def _switches(context: Context, experiment: Switches, own: Sequence[str]) -> dict[str, float]:
    settings = load(
        [
            *experiment.settings,
            *own,
            f"link={context.link_variant}",
            "system.check_slo=false",
            "workload=deterministic",
            f"workload.requests={len(experiment.models)}",
            "workload.rate_rps=0.001",
            "workload.prompt_tokens=512",
            "workload.output_tokens=8",
        ]
    )
    catalog = {"models": [{"spec": m} for m in experiment.models]}
    OmegaConf.update(settings, "catalog", catalog, merge=False)
    requests: list[dict[str, Any]] = simulate(build(settings), compiled=False).requests.to_pylist()
    return {r["model"]: r["started_s"] - r["arrival_s"] for r in requests}
