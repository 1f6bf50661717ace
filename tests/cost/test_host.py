"""Engines that launch kernels one by one: a step takes the longer of host and GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c2c.config import build, load, simulate
from c2c.cost import Constants, HostTime, Routing, load_constants, load_engine, step_table
from c2c.errors import DataError, SettingError
from c2c.hardware import Slice, load_platform, search_also
from c2c.models import load_spec

LINK = 375.0
DENSE, MIXTURE = load_spec("llama-3-8b"), load_spec("qwen3-30b-a3b")
SIZES: Any = {"max_tokens": 64, "max_rows": 8, "weights": "hbm"}


def with_host(constants: Constants, **times: object) -> Constants:
    return replace(constants, host=HostTime(**times))


def test_a_step_takes_the_longer_of_host_and_gpu(full_gpu: Slice, constants: Constants) -> None:
    gpu = step_table(DENSE, full_gpu, constants, LINK, **SIZES)
    for layer_s in (1e-6, 1.5e-3):
        host = with_host(constants, layer_s=layer_s)
        table = step_table(DENSE, full_gpu, host, LINK, **SIZES)
        gpu_s, ours_s = (
            t.body_s[1, 0] + t.head_s[1, 0] + t.decode_attention_s[1] for t in (gpu, table)
        )
        assert ours_s == pytest.approx(max(gpu_s, DENSE.layers * layer_s), rel=1e-3)
        assert table.body_s[0, 0] == 0.0
        np.testing.assert_array_equal(table.body_link_bytes, gpu.body_link_bytes)


def test_streamed_weights_hide_a_host_that_resident_ones_do_not(
    full_gpu: Slice, constants: Constants
) -> None:
    host = with_host(constants, layer_s=8e-4)
    more = {}
    for weights in ("host", "hbm"):
        sizes: Any = {"max_tokens": 1, "max_rows": 1, "weights": weights}
        tables = [step_table(DENSE, full_gpu, c, LINK, **sizes) for c in (constants, host)]
        before, after = (float(t.body_s[1, 0]) for t in tables)
        more[weights] = after / before
    assert more["host"] == 1.0
    assert more["hbm"] > 3.0


def test_all_experts_are_visited_or_those_with_rows() -> None:
    every, hit = (HostTime(expert_s=1e-4, visits=v) for v in ("all", "hit"))
    tokens = np.array([0, 1, 4096])
    all_s, hit_s = (h.launches_s(MIXTURE, tokens, Routing()) for h in (every, hit))
    assert all_s.tolist() == pytest.approx([0.0, 48 * 128e-4, 48 * 128e-4])
    assert hit_s.tolist() == pytest.approx([0.0, 48 * 8e-4, 48 * 128e-4])
    assert every.launches_s(DENSE, tokens, Routing()).tolist() == [0.0, 0.0, 0.0]
    apart = every.launches_s(MIXTURE, tokens, Routing(), experts_over=4)
    np.testing.assert_allclose(apart, all_s / 4)


def test_sequences_wait_for_scheduler_and_sampler(full_gpu: Slice, constants: Constants) -> None:
    host = with_host(constants, sequence_s=1e-4)
    before, after = (
        step_table(DENSE, full_gpu, c, LINK, **SIZES) for c in (constants, host)
    )  # fmt: skip
    np.testing.assert_allclose(after.head_s[:, 0] - before.head_s[:, 0], 1e-4 * np.arange(9))
    np.testing.assert_array_equal(after.body_s, before.body_s)


def test_a_lone_answer_on_grace_waits_for_the_engines_host() -> None:
    settings = (
        "hardware=gh200", "mig=1x96gb", "system=serverlessllm", "system.check_slo=false",
        "catalog.models=[{spec: llama-3-8b}]", "catalog=dense", "workload=deterministic",
        "workload.requests=3", "workload.rate_rps=0.001", "workload.output_tokens=64",
    )  # fmt: skip
    eager, graphs = (
        simulate(build(load([*settings, *more])), compiled=False).summary["tpot_s"]["mean"]
        for more in (["engine=transformers-4.51"], [])
    )
    factor = load_platform("gh200").host.host_factor or 1.0
    assert eager == pytest.approx(32 * load_engine("transformers-4.51").host.layer_s * factor, 0.03)
    assert graphs < 0.2 * eager


def test_a_host_that_is_slower_takes_longer_and_others_factor_is_one() -> None:
    engine = load_engine("transformers-4.46")
    known = load_constants("h100_sxm")
    assert engine.constants(known, 2.0).host == engine.host.scaled(2.0)
    assert engine.constants(known).host == engine.host
    assert load_platform("h100_sxm").host.host_factor is None
    assert load_engine("vllm-0.18.0").constants(known).host == HostTime()


def test_a_mode_of_a_version_is_chosen_by_its_whole_name() -> None:
    assert load_engine("vllm-0.5.1-eager").host.layer_s > 0.0
    assert load_engine("vllm-0.5.1").version == "0.6.0"
    assert load_engine("transformers").version == "4.51.0"


@pytest.mark.parametrize(
    ("line", "field"),
    [("  layers_s: {value: 1.0e-3, source: ours}", "host"),
     ("  layer_s: 1.0e-3", "host.layer_s"),
     ("  layer_s: {value: -1.0, source: ours}", "host.layer_s"),
     ("  visits: {value: some, source: ours}", "host.visits")],
)  # fmt: skip
def test_a_wrong_host_is_named(line: str, field: str, tmp_path: Path) -> None:
    folder = tmp_path / "engines"
    folder.mkdir()
    text = (Path(__file__).parents[2] / "conf/engines/vllm-0.18.0.yaml").read_text()
    (folder / "other-1.0.yaml").write_text(f"{text}host:\n{line}\n")
    search_also([tmp_path])
    try:
        with pytest.raises((DataError, SettingError), match=field):
            load_engine("other-1.0")
    finally:
        search_also([])
