"""BLIS (`inference-sim`), with its trained step times."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path
from typing import Final

import numpy as np

from experiments.lab.referee.process import timed
from experiments.lab.referee.scenario import Ran, Requests, Scenario

__all__ = ["NAME", "refuses", "run"]

NAME: Final = "BLIS"
# Clone `inference-sim/inference-sim` as this folder and run `go build -o blis main.go` in it. BLIS
# reads its constants and models from there.
_FOLDER: Final = Path(".venv-peer-blis")
_CHIPS: Final = {"h100_sxm": "H100", "a100_sxm": "A100-SXM", "l40s": "L40S"}
_MODELS: Final = {
    "llama-3-8b": "llama-3.1-8b-instruct", "qwen3-30b-a3b": "qwen3-30b-a3b",
    "llama-3-70b": "llama-3.1-70b-instruct",
}  # fmt: skip
_HEAD: Final = "trace_version: 2\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n"
_NUMBERS: Final = (
    "round_index", "prefix_length", "input_tokens", "output_tokens", "text_tokens", "image_tokens",
    "audio_tokens", "video_tokens", "reason_ratio", "deadline_us", "server_input_tokens",
    "arrival_time_us", "send_time_us", "first_chunk_time_us", "last_chunk_time_us", "num_chunks",
)  # fmt: skip
# BLIS reads columns by position: keep this order.
_COLUMNS: Final = (
    "request_id", "client_id", "tenant_id", "slo_class", "session_id", "round_index",
    "prefix_group", "prefix_length", "streaming", "input_tokens", "output_tokens", "text_tokens",
    "image_tokens", "audio_tokens", "video_tokens", "reason_ratio", "model", "deadline_us",
    "server_input_tokens", "arrival_time_us", "send_time_us", "first_chunk_time_us",
    "last_chunk_time_us", "num_chunks", "status", "error_message", "finish_reason",
)  # fmt: skip


def refuses(scenario: Scenario) -> str:
    """Return why a scenario cannot run, or ""."""
    if scenario.settings:
        return "one model on whole GPUs of one kind: no slices, switching or failures"
    if scenario.steps == "ours":
        return "step times are its own, constant, or sums of its own terms"
    if scenario.chip not in _CHIPS:
        return f"no constants of {scenario.chip}"
    if not (_FOLDER / "blis").is_file():
        return "not built: see experiments/lab/referee/blis.py"
    return ""


def run(scenario: Scenario, requests: Requests, trace: Path, *, limit_s: float) -> Ran:
    """Run the simulator's command on the requests."""
    head, data, result = (trace.with_suffix(f".blis.{end}") for end in ("yaml", "csv", "json"))
    head.write_text(_HEAD, encoding="ascii")
    _write(scenario, requests, data)
    flags = {
        "trace-header": head, "trace-data": data, "results-path": result,
        "model": _MODELS[scenario.model],
        "model-config-folder": _FOLDER / "model_configs" / _MODELS[scenario.model],
        "defaults-filepath": _FOLDER / "defaults.yaml",
        "hardware-config": _FOLDER / "hardware_config.json",
        "hardware": _CHIPS[scenario.chip], "tp": scenario.gpus,
        "max-num-batched-tokens": scenario.tokens, "max-num-seqs": scenario.sequences,
    }  # fmt: skip
    if scenario.step_s is not None:  # BLIS's seventh term is constant a step, in microseconds
        flags |= {"alpha-coeffs": "0,0,0", "beta-coeffs": f"0,0,0,0,0,0,{1e6 * scenario.step_s}"}
    options = [word for name, value in flags.items() for word in (f"--{name}", value)]
    cpu_s, wall_s, _ = timed(NAME, [_FOLDER / "blis", "replay", *options], limit_s=limit_s)
    ttft_s, end_s = np.full((2, len(requests.prompt)), np.nan)
    for row in json.loads(result.read_text(encoding="utf-8")):
        ttft_s[row["request_id"]] = 1e-6 * row["ttft_us"]
        end_s[row["request_id"]] = 1e-6 * row["e2e_us"]
    return Ran(ttft_s, end_s, cpu_s, wall_s, _version())


def _write(scenario: Scenario, requests: Requests, path: Path) -> None:
    always = dict.fromkeys(_COLUMNS, "") | dict.fromkeys(_NUMBERS, "0")
    always |= {"streaming": "true", "status": "ok", "prefix_length": str(scenario.shared_tokens)}
    with path.open("w", encoding="ascii", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        columns = (requests.arrival_s, requests.prompt, requests.output, requests.group)
        for k, (at_s, prompt, output, group) in enumerate(zip(*columns, strict=True)):
            at_us = round(1e6 * at_s)
            cells = {
                "request_id": k, "input_tokens": prompt - scenario.shared_tokens,
                "output_tokens": output, "arrival_time_us": at_us, "send_time_us": at_us,
                "prefix_group": f"group {group}" if scenario.shared_tokens else "",
            }  # fmt: skip
            writer.writerow(always | cells)


def _version() -> str:
    process = subprocess.run(  # noqa: S603 (git, of a folder of ours)
        ["git", "-C", str(_FOLDER), "rev-parse", "--short=8", "HEAD"],  # noqa: S607
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return f"blis {process.stdout.strip()}"
