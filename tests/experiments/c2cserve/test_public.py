"""Baselines as public code schedules them, on one GPU."""

from __future__ import annotations

import numpy as np
import pytest

from c2c.workloads import RequestBlock
from experiments.c2cserve.baselines import chunk_settings, engine_settings
from experiments.c2cserve.fig12 import Windows, bands
from experiments.c2cserve.public import Requests, batches_to_their_end, routed_ttft_s
from experiments.figure import Context

CONTEXT = Context(profile="quick", link_variant="measured", seeds=(0,))


def requests(arrivals: list[float], models: list[int], output: int = 200) -> Requests:
    count = len(arrivals)
    return Requests(
        specs=("llama-3-3b", "llama-3-8b"),
        block=RequestBlock(
            arrival_s=np.array(arrivals), model=np.array(models, np.int32),
            prompt_tokens=np.full(count, 500, np.int32),
            output_tokens=np.full(count, output, np.int32),
        ),
    )  # fmt: skip


def test_engines_are_of_baselines_and_replace_the_fitted_time_of_an_expert() -> None:
    assert engine_settings("c2cserve", "public_grace") == ()
    assert engine_settings("finemoe", "gpu_bound") == ()
    assert engine_settings("aegaeon_hybrid", "public_grace") == ("engine=vllm-0.5.1-eager",)
    assert engine_settings("moe_infinity_hybrid", "public_x86") == (
        "engine=transformers-4.51", "hardware.host.host_factor=1", "system.expert_cache.host_s=0"
    )  # fmt: skip
    assert chunk_settings("serverlessllm", 512) == chunk_settings("c2cserve", "table") == ()
    assert "system.chunk.tokens=512" in chunk_settings("c2cserve", 512)


def test_a_batch_runs_to_its_end_before_the_next_models() -> None:
    both = batches_to_their_end(requests([0.0, 0.0, 0.01], [0, 1, 0]), CONTEXT, "gpu_bound")
    short = batches_to_their_end(requests([0.0, 0.0], [0, 1], 2), CONTEXT, "gpu_bound")
    assert both[0] == pytest.approx(short[0])
    assert both[1] > short[1] + 0.3  # 198 tokens more of the other model
    assert both[2] > both[1]  # came too late for the first batch, and then waits for the other's


def test_hybrid_gemm_saves_part_of_a_copy_and_hosts_lengthen_batches() -> None:
    turns = requests([0.0, 5.0, 10.0, 15.0], [0, 1, 0, 1])
    copied, hybrid, eager = (
        batches_to_their_end(turns, CONTEXT, engine, hybrid=streams)
        for engine, streams in (("gpu_bound", False), ("gpu_bound", True), ("public_grace", False))
    )
    assert (hybrid < copied).all()
    assert (eager > copied).all()
    many = batches_to_their_end(requests([0.0] * 17, [0] * 17), CONTEXT, "gpu_bound")
    assert len(set(many.tolist())) == 2  # sixteen at once, and one more


def test_the_router_has_seconds_where_a_start_is_needed_and_answers_at_the_client() -> None:
    few = requests([10.0, 100.0], [0, 1])
    given = {"has_ticks": False, "seed": 0}
    engine, client = (
        routed_ttft_s(few, CONTEXT, "gpu_bound", at_client=at, **given) for at in (False, True)
    )
    assert (engine > 2.0).all()
    assert (engine < 6.0).all()
    assert (client > engine + 0.3).all()
    inside = routed_ttft_s(few, CONTEXT, "gpu_bound", at_client=False, has_ticks=True, seed=0)
    assert (inside < engine).all()


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
