"""Baselines as public code schedules them, on one GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c2c.config import build, load, simulate
from c2c.errors import SettingError
from experiments.papers.c2cserve.baselines import chunk_settings, engine_settings
from experiments.papers.c2cserve.fig12 import Windows, bands

Times = dict[str, np.ndarray[Any, Any]]


def served(
    folder: Path, system: str, rows: list[tuple[float, int]], *more: str, output: int = 200
) -> Times:
    """Return columns of requests of 500 tokens, each of a time and a model, by arrival."""
    trace = folder / "requests.csv"
    lines = [f"{at},m{m},500,{output}" for at, m in rows]
    trace.write_text("\n".join(["arrival_s,model,prompt_tokens,output_tokens", *lines]))
    got = simulate(build(load([
        f"system={system}", "mig=1x96gb", "workload=file", f"workload.path={trace}",
        "catalog.models=[{name: m0, spec: llama-3-3b}, {name: m1, spec: llama-3-8b}]",
        "system.check_slo=false", *more,
    ]))).requests.sort_by("arrival_s")  # fmt: skip
    assert set(got["status"].to_pylist()) == {"finished"}
    names = ("arrival_s", "started_s", "first_token_s", "finished_s")
    return {name: got[name].to_numpy() for name in names}


def waits(folder: Path, *given: Any, **more: Any) -> np.ndarray[Any, Any]:
    found = served(folder, *given, **more)
    wait: np.ndarray[Any, Any] = found["started_s"] - found["arrival_s"]
    return wait


ROUTER = "serverlessllm_public"
LINKS = "system.turn.switch_gbps=inf"


def test_engines_are_of_baselines_and_replace_the_fitted_time_of_an_expert() -> None:
    assert engine_settings("c2cserve", "public_grace") == ()
    assert engine_settings("finemoe", "gpu_bound") == ()
    assert engine_settings("aegaeon_hybrid", "public_grace") == ("engine=vllm-0.5.1-eager",)
    assert engine_settings("moe_infinity_hybrid", "public_x86") == (
        "engine=transformers-4.51", "hardware.host.host_factor=1", "system.expert_cache.host_s=0"
    )  # fmt: skip
    assert chunk_settings("serverlessllm", 512) == chunk_settings("c2cserve", "table") == ()
    assert "system.chunk.tokens=512" in chunk_settings("c2cserve", 512)


def test_a_lone_request_waits_for_scaler_scheduler_start_and_whole_polls(tmp_path: Path) -> None:
    found = waits(tmp_path, ROUTER, [(40.0 * k + 0.05 * k, 0) for k in range(21)])
    assert (found >= 1.68).all()  # the start and the copy
    assert (found <= 3.0 + 1.68).all()  # a scaler's, a scheduler's and a balancer's second
    assert np.ptp(found) >= 0.9
    assert found == pytest.approx(np.round(found), abs=1e-5)


def test_each_request_starts_an_engine_unless_it_is_kept_alive(tmp_path: Path) -> None:
    rows = [(5.0, 0), (35.0, 0)]
    assert waits(tmp_path, ROUTER, rows)[1] > 1.6
    kept = waits(tmp_path, ROUTER, rows, "system.option.keep_alive_s=100")
    assert kept[1] == pytest.approx(1.0)


def test_an_engine_has_one_request_and_models_share_the_gpu_in_turn(tmp_path: Path) -> None:
    rows = [(5.0, 0), (5.1, 0), (5.2, 1)]
    found = served(tmp_path, ROUTER, rows, output=1500)
    order = np.argsort(found["started_s"])
    ends, begins = found["finished_s"][order], found["started_s"][order]
    assert (begins[1:] >= ends[:-1]).all()
    assert begins[-1] > ends[-2] + 1.6  # another engine's start lies between
    two = ("system.option.target=2", "system.max_batch=2")
    both = served(tmp_path, ROUTER, rows[:2], *two, output=1500)
    assert both["started_s"][1] < both["finished_s"][0]


def test_free_slices_serve_models_beside_each_other(tmp_path: Path) -> None:
    rows = [(5.0, 0), (5.1, 1), (5.2, 0)]
    found = served(tmp_path, ROUTER, rows, "mig=4x24gb", output=1500)
    assert found["started_s"].max() < found["finished_s"].min()


def test_the_parts_of_the_router_stand_together() -> None:
    for other in (
        "system/option=first_token", "system/place=first_idle", "system/route=ends_first",
        "system/batch=reserved", "system.engines.residents=2",
    ):  # fmt: skip
        with pytest.raises(SettingError, match=r"polled_router with system/route=no_engine"):
            build(load([f"system={ROUTER}", "workload=poisson", other]))


def test_a_batch_runs_to_its_end_before_the_next_models(tmp_path: Path) -> None:
    found = served(tmp_path, "mini_aegaeon", [(5.0, 0), (5.001, 1), (5.1, 0)], output=200)
    assert found["first_token_s"][1] > found["finished_s"][0]
    assert found["first_token_s"][2] > found["finished_s"][1]  # too late for the first batch
    many = served(tmp_path, "mini_aegaeon", [(5.0, 0)] * 17)
    assert len(set(np.round(many["first_token_s"], 4))) == 2  # sixteen at once, and one more
    assert many["started_s"].max() >= many["finished_s"].min()


def test_hybrid_gemm_saves_part_of_a_copy_and_hosts_lengthen_batches(tmp_path: Path) -> None:
    rows = [(5.0 * k, k % 2) for k in range(4)]
    copied, hybrid, eager = (
        served(tmp_path, *given)["first_token_s"]
        for given in (
            ("mini_aegaeon", rows), ("mini_aegaeon_hybrid", rows),
            ("mini_aegaeon", rows, "engine=vllm-0.5.1-eager"),
        )
    )  # fmt: skip
    assert (hybrid < copied)[2:].all()  # after the engines' starts
    assert (eager > copied).all()


def test_the_artefact_computes_prompts_alone_and_has_longer_turns(tmp_path: Path) -> None:
    one = served(tmp_path, "aegaeon_artefact", [(5.0, 0)] * 3)["first_token_s"]
    assert len(set(np.round(one, 5))) == 3
    assert len(set(np.round(served(tmp_path, "aegaeon", [(5.0, 0)] * 3)["first_token_s"], 5))) == 1
    rows = [(5.0, k % 2) for k in range(8)]
    gaps = [
        np.diff(np.sort(served(tmp_path, system, rows, *more, output=2000)["finished_s"])).max()
        for system, *more in (("aegaeon_artefact",), ("aegaeon_artefact", LINKS))
    ]  # fmt: skip
    assert gaps[0] > 2.0 * gaps[1]


def test_bands_are_of_windows_that_count() -> None:
    arrival = np.concatenate([np.linspace(0.0, 99.0, 100), [150.0]])
    ttft = np.concatenate([np.linspace(0.0, 0.99, 100), [50.0]])
    windows = Windows(target_s=1.0, width_s=100.0, least_requests=30)
    found = bands(ttft, arrival, windows)
    assert found["medians"] == pytest.approx([0.495, 0.495])
    assert found["p95"] == pytest.approx([np.percentile(ttft[:-1], 95)] * 2)
    assert found["requests"] == pytest.approx(np.percentile(ttft, (5, 95)).tolist())
    ttft[3] = np.inf  # a failed request is in no band
    assert bands(ttft, arrival, windows)["requests"][1] < 1.0
