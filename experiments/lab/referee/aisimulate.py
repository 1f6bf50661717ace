"""NVIDIA's AISimulate, run by its command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np

from experiments.lab.referee.process import timed
from experiments.lab.referee.scenario import BLOCK_TOKENS, Ran, Requests, Scenario

__all__ = ["NAME", "refuses", "run"]

NAME: Final = "AISimulate"
_PYTHON: Final = Path(".venv-peer-aisimulate/bin/python")
_CHIPS: Final = {
    "h100_sxm": "h100_sxm", "a100_sxm": "a100_sxm", "l40s": "l40s", "b200": "b200_sxm",
    "gb200": "gb200", "rtx_pro_6000": "rtx_pro_6000_server",
}  # fmt: skip
_MODELS: Final = {
    "llama-3-8b": "meta-llama/Meta-Llama-3.1-8B", "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "llama-3-70b": "meta-llama/Meta-Llama-3.1-70B",
}  # fmt: skip


def refuses(scenario: Scenario) -> str:
    """Return why a scenario cannot run, or ""."""
    if scenario.settings:
        return "one model on whole GPUs of one kind: no slices, switching or failures"
    if scenario.steps == "ours":
        return "step times are its own, constant, or a polynomial"
    if scenario.chip not in _CHIPS:
        return f"no profile of {scenario.chip}"
    if not _PYTHON.is_file():
        return "not installed: make peer-aisimulate"
    return ""


def run(scenario: Scenario, requests: Requests, trace: Path, *, limit_s: float) -> Ran:
    """Run the simulator's command on the trace."""
    folder = trace.with_suffix(".aisimulate")
    shutil.rmtree(folder, ignore_errors=True)
    settings = trace.with_suffix(".aisimulate.yaml")
    settings.write_text(json.dumps(_settings(scenario, trace)), encoding="utf-8")  # JSON is YAML
    cpu_s, wall_s, _ = timed(
        NAME,
        [_PYTHON, "-m", "aisimulate", "predict", "-c", settings, "--format", "json",
         "--capture-per-request", "--output-dir", folder],
        limit_s=limit_s,
    )  # fmt: skip
    lines = (folder / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    rows = sorted(map(json.loads, lines), key=lambda row: _number(row["session_id"]))
    assert [row["input_length"] for row in rows] == requests.prompt.tolist()
    ttft_s, end_s = (
        1e-3 * np.array([row[name] for row in rows], float)
        for name in ("ttft_ms", "e2e_latency_ms")
    )
    return Ran(ttft_s, end_s, cpu_s, wall_s, _version())


def _number(session: str) -> int:
    return int(session.rpartition("_")[2])


def _version() -> str:
    path = next(_PYTHON.parents[1].glob("lib/python*/site-packages/aisimulate-*.dist-info"))
    return path.name.removesuffix(".dist-info").replace("-", " ")


def _settings(scenario: Scenario, trace: Path) -> dict[str, Any]:
    worker: dict[str, Any] = {
        "scheduler": {"max_batched_tokens": scenario.tokens, "max_sequences": scenario.sequences},
        "kv_cache": {"prefix_caching": scenario.shared_tokens > 0},
    }
    if scenario.gpus > 1:
        worker["parallelism"] = {"tensor": scenario.gpus}
    if scenario.step_s is not None:  # AISimulate counts decodes in every step
        worker["timing"] = {"type": "fixed", "prefill_ms": 0.0, "decode_ms": 1e3 * scenario.step_s}
    source = {"type": "trace", "paths": [str(trace)], "block_size": BLOCK_TOKENS}
    return {
        "traffic": {"source": source, "load": {"type": "trace_timestamps"}},
        "engine": {
            "model": _MODELS[scenario.model], "hardware": _CHIPS[scenario.chip],
            "backend": "vllm", "backend_version": "current", "workers": {"aggregated": worker},
        },
    }  # fmt: skip
