"""Fit of an engine's host times to results of four benchmark tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from c2c.cost import load_engine
from c2c.hardware import search_also
from c2c.models import load_spec
from experiments.fit_run import Run, main, runs_in
from experiments.plain_engine import Group, Load, served

GROUP, SPEC = Group(platform="h100_sxm"), load_spec("llama-3-8b")
SERVER = replace(load_engine("vllm"), step_overhead_s=2e-3, request_s=0.05)
LOADS = ((1, 400, 50), (2, 900, 80), (4, 400, 120), (8, 1800, 60), (16, 400, 50), (32, 900, 80))


def vllm(run: Run) -> dict[str, Any]:
    got, load = run.measured, run.load
    return {
        "completed": 90, "total_input_tokens": 90 * load.isl * 0.9, "request_rate": "inf",
        "total_output_tokens": 90 * load.osl * 0.9, "max_concurrency": load.clients,
        "mean_ttft_ms": 1e3 * got.ttft_s, "mean_tpot_ms": 1e3 * got.tpot_s,
        "output_throughput": got.tokens_s,
    }  # fmt: skip


def aiperf(run: Run) -> dict[str, Any]:
    got, load = run.measured, run.load
    values = {
        "request_count": 90, "input_sequence_length": load.isl * 0.9,
        "output_sequence_length": load.osl * 0.9, "time_to_first_token": 1e3 * got.ttft_s,
        "inter_token_latency": 1e3 * got.tpot_s, "output_token_throughput": got.tokens_s,
    }  # fmt: skip
    found = {name: {"unit": "ms", "avg": value} for name, value in values.items()}
    return {**found, "input_config": {"loadgen": {"concurrency": load.clients}}}


def guidellm(run: Run) -> dict[str, Any]:
    got, load = run.measured, run.load
    values = {
        "prompt_token_count": load.isl * 0.9, "output_token_count": load.osl * 0.9,
        "time_to_first_token_ms": 1e3 * got.ttft_s, "inter_token_latency_ms": 1e3 * got.tpot_s,
        "output_tokens_per_second": got.tokens_s, "request_concurrency": load.clients - 0.2,
    }  # fmt: skip
    return {"metrics": {name: {"successful": {"mean": v}} for name, v in values.items()}}


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    loads = [Load(clients=clients, isl=isl, osl=osl) for clients, isl, osl in LOADS]
    return [Run(load=one, measured=served(GROUP, SPEC, SERVER, one)[0]) for one in loads]


def files(folder: Path, runs: list[Run], tool: str) -> str:
    how: Callable[[Run], Any] = {"aiperf": aiperf, "guidellm": guidellm}.get(tool, vllm)
    data = [how(run) for run in runs]
    if tool == "guidellm":
        data = [{"benchmarks": data}]
    texts = ["\n".join(map(json.dumps, data))] if tool == "sglang" else list(map(json.dumps, data))
    for k, text in enumerate(texts):
        (folder / f"{k}.json").write_text(text)
    return f"run=[{','.join(str(folder / f'{k}.json') for k in range(len(texts)))}]"


@pytest.mark.parametrize("tool", ["vllm", "sglang", "aiperf", "guidellm"])
def test_a_fit_finds_the_times_of_the_server_that_ran(
    tmp_path: Path, runs: list[Run], tool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [files(tmp_path, runs, tool), "model=llama-3-8b", f"to={tmp_path}"]
    assert main(given) == 0
    said = capsys.readouterr().out
    assert "errors on 2 held-out of 6 runs: TTFT: median" in said
    search_also([tmp_path])
    found = load_engine("mine")
    search_also(())
    assert found.step_overhead_s == pytest.approx(2e-3, rel=0.05)
    assert found.request_s == pytest.approx(0.05, rel=0.1)
    same = {"step_overhead_s": 0.0, "request_s": 0.0, "sources": {}, "version": ""}
    assert replace(found, **same) == replace(SERVER, **same)
    assert "held" not in found.sources["layer_s"]


def test_a_rate_is_an_open_loop_and_an_endless_one_clients(tmp_path: Path, runs: list[Run]) -> None:
    data = vllm(runs[0]) | {"max_concurrency": None}
    file = tmp_path / "x.json"
    file.write_text(json.dumps(data | {"request_rate": 3.5}))
    (run,) = runs_in(file)
    assert (run.load.rate_rps, run.load.clients) == (3.5, 0)
    file.write_text(json.dumps(data))
    (run,) = runs_in(file)
    assert (run.load.rate_rps, run.load.clients) == (0.0, 90)


def test_what_cannot_be_fitted_is_refused(
    tmp_path: Path, runs: list[Run], capsys: pytest.CaptureFixture[str]
) -> None:
    good, file = vllm(runs[0]), tmp_path / "x.json"
    for data, message in (
        (good, "at least 3 runs of unlike loads"),
        ("hello", "expected a result of vLLM, SGLang, AIPerf or GuideLLM"),
        ({"a": 1}, "found keys a"),
        (good | {"mean_tpot_ms": 0}, "x.json: mean_tpot_ms: expected a number above 0, found 0"),
        (good | {"request_rate": 2}, "both a rate and a limit of requests at once"),
        (good | {"total_output_tokens": 90}, "without a second one there is no TPOT"),
        (guidellm(runs[0]) | {"metrics": {"time_to_first_token_ms": {}}}, "request_concurrency"),
    ):
        file.write_text(json.dumps(data))
        assert main([f"run={file}"]) == 2
        assert message in capsys.readouterr().err
    assert main([f"run={tmp_path / 'none.json'}"]) == 2
