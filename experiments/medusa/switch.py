"""C2CServe's model switch with captured or restored graphs (beyond both papers)."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from omegaconf import OmegaConf

from c2c.config import build, load, simulate
from experiments.figure import SIMULATOR, Computed, Context, figure

__all__ = ["compute"]

MODELS: Final = ("llama-3-3b", "llama-3-8b", "llama-2-13b")
ROWS: Final = {
    "C2CServe (as printed)": ("c2cserve_letter", None),
    "C2CServe, graphs captured": ("c2cserve_letter", "vllm"),
    "C2CServe, MEDUSA": ("c2cserve_letter", "medusa"),
    "ServerlessLLM, vLLM's start": ("serverlessllm", "vllm"),
    "ServerlessLLM, MEDUSA": ("serverlessllm", "medusa"),
}


@figure("medusa.switch", title="MEDUSA under C2CServe's switch",
        draw="medusa.draw_switch", needs=SIMULATOR, beyond=True)  # fmt: skip
def compute(context: Context) -> Computed:
    """Return the time from arrival to the first computation on a slice with another model."""
    rows = []
    for k, (row, (system, start)) in enumerate(ROWS.items()):
        rows += [
            {"row": row, "model": model, "switch_s": seconds}
            for model, seconds in _switches(context, system, start).items()
        ]
        if context.progress:
            context.progress(k + 1, len(ROWS))
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
        caption=caption,
        assumptions=assumptions,
    )


def _switches(context: Context, system: str, start: str | None) -> dict[str, float]:
    settings = load(
        [
            "hardware=gh200",
            "mig=1x96gb",
            f"system={system}",
            *([f"system.start=medusa/{start}"] if start else []),
            f"link={context.link_variant}",
            "system.check_slo=false",
            "workload=deterministic",
            f"workload.requests={len(MODELS)}",
            "workload.rate_rps=0.001",
            "workload.prompt_tokens=512",
            "workload.output_tokens=8",
        ]
    )
    catalog = {"models": [{"spec": m} for m in MODELS]}
    OmegaConf.update(settings, "catalog", catalog, merge=False)
    found: list[dict[str, Any]] = simulate(build(settings), compiled=False).requests.to_pylist()
    return {r["model"]: r["started_s"] - r["arrival_s"] for r in found}
