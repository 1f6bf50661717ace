"""Starts: stages on their units, the printed ones of one model, and the same in the loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from c2c.config import RunSetup, build, load, simulate
from c2c.cost import launched
from c2c.errors import SettingError
from c2c.hardware.conf import read_yaml
from c2c.models import load_spec
from c2c.systems.medusa import (
    STARTS,
    load_measured_start,
    loading_s,
    plan_of,
    schedule,
    stage,
    stages_of,
)
from c2c.systems.medusa import stages as stages_file

MEASURED = load_measured_start()
OWN = stages_of(load_spec(MEASURED.model), MEASURED)


def test_the_model_that_was_measured_has_its_printed_stages() -> None:
    for name in ("structure_s", "weights_s", "tokenizer_s", "kv_profiled_s", "captured_s",
                 "kv_restored_s", "restored_s"):  # fmt: skip
        assert getattr(OWN, name) == pytest.approx(getattr(MEASURED, name), rel=1e-12)
    assert loading_s("vllm", OWN) == pytest.approx(2.85)
    assert loading_s("vllm_async", OWN) == pytest.approx(2.46)
    assert loading_s("medusa", OWN) == pytest.approx(1.67)


def test_a_model_s_own_tokenizer_and_profiling_come_before_the_measured_model_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llama, other = (stages_of(load_spec(name), MEASURED) for name in ("llama-2-7b", "llama-3-8b"))
    assert (llama.tokenizer_s, llama.kv_profiled_s) == (0.572, 0.691)
    assert (other.tokenizer_s, other.kv_profiled_s) == (0.21, 0.5)
    shipped = read_yaml("starts", "a100_40_vllm")
    for models, told in (
        ({"yi-9c": {}}, "yi-9c"),
        ({"yi-9b": {"tokenizer_s": -1}}, r"models\.yi-9b\.tokenizer_s=-1"),
        (3, r"starts\.mine\.models=3: expected a mapping"),
    ):
        mine = shipped | {"models": models}
        monkeypatch.setattr(stages_file, "read_yaml", lambda *_, mine=mine: mine)
        with pytest.raises(SettingError, match=told):
            load_measured_start("mine")


UNITS = st.sampled_from(("disk", "cpu", "gpu"))


@given(
    stages=st.lists(
        st.tuples(st.floats(0, 5), UNITS, st.sets(st.integers(0, 9))), min_size=1, max_size=10
    )
)
def test_a_unit_runs_one_stage_at_a_time_and_nobody_starts_too_early(
    stages: list[tuple[float, Any, set[int]]],
) -> None:
    plan = [
        stage(str(k), seconds, on, tuple(str(a) for a in after if a < k))
        for k, (seconds, on, after) in enumerate(stages)
    ]
    spans = schedule(plan)
    ended = {span.stage.name: span.end_s for span in spans}
    for span in spans:
        assert all(ended[name] <= span.begin_s for name in span.stage.after)
        assert span.end_s - span.begin_s == pytest.approx(span.stage.seconds)
        for other in spans:
            if other is not span and other.stage.draws.keys() == span.stage.draws.keys():
                assert other.end_s <= span.begin_s or span.end_s <= other.begin_s


@pytest.mark.parametrize("model", ["llama-2-13b", "qwen1.5-0.5b", "falcon-7b"])
def test_each_step_beyond_vllm_is_worth_something(model: str) -> None:
    stages = stages_of(load_spec(model), MEASURED)
    seconds = {start: loading_s(start, stages) for start in STARTS}
    assert seconds["medusa"] < seconds["no_graph"] < seconds["vllm"]
    assert seconds["vllm_async"] < seconds["vllm"]


def start_of(system: str, start: str) -> float:
    settings = load(
        ["hardware=a100_40", "hardware.host.disk_gbps=100", "mig=1x40gb", f"system={system}",
         f"system.start=medusa/{start}", "weights_start=host", "system.check_slo=false",
         "system.starts_active=false",
         "workload=deterministic", "workload.requests=1", "workload.prompt_tokens=64",
         "workload.output_tokens=4"]
    )  # fmt: skip
    OmegaConf.update(settings, "catalog", {"models": [{"spec": "qwen1.5-4b"}]}, merge=False)
    (row,) = simulate(build(settings), compiled=False).requests.to_pylist()
    seconds: float = row["started_s"] - row["arrival_s"]
    return seconds


def test_the_loop_carries_a_named_start_out() -> None:
    size_s = MEASURED.weights_s
    copy_s = start_of("serverlessllm", "vllm") - 2.85 + size_s
    assert 0 < copy_s < 1  # over the link instead of the drives
    assert start_of("serverlessllm", "medusa") == pytest.approx(
        loading_s("medusa", replace(OWN, weights_s=copy_s)), rel=1e-9
    )


def test_where_nothing_is_copied_only_kv_cache_and_graphs_are_left() -> None:
    saved = start_of("c2cserve_letter", "vllm") - start_of("c2cserve_letter", "medusa")
    assert saved == pytest.approx(0.50 + 0.90 - 0.02 - 0.57, rel=1e-9)


def test_wrong_names_and_numbers_are_refused() -> None:
    with pytest.raises(SettingError, match=r"system\.start\.way='madusa': expected .*medusa"):
        start_of("serverlessllm", "madusa")
    with pytest.raises(SettingError, match=r"system\.start='fast'"):
        plan_of("fast", OWN)
    with pytest.raises(SettingError, match="starts='none'"):
        load_measured_start("none")
    with pytest.raises(SettingError, match=r"runtime_share=1\.5: expected a share in \(0, 1\)"):
        replace(MEASURED, runtime_share=1.5)
    with pytest.raises(SettingError, match=r"weights_s=0"):
        replace(MEASURED, weights_s=0)
    with pytest.raises(SettingError, match=r"beside_weights_s=1"):
        replace(MEASURED, beside_weights_s=1.0)


def run_of(*words: str) -> RunSetup:
    return build(
        load(
            ["system=serverlessllm", "catalog.models=[{spec: qwen1.5-0.5b}]", "workload=poisson",
             "workload.requests=10", "workload.rate_rps=0.5", "workload.output_tokens=50",
             "workload.prompt_tokens=100", "workload.lengths=fixed", *words]
        )
    )  # fmt: skip


@pytest.mark.parametrize("hardware", ["a100_40", "h100_sxm"])
def test_decodes_without_graphs_take_as_long_as_their_launches(hardware: str) -> None:
    """266 launches of 0.5B take the host longer than the GPU's 2 ms; other ways have graphs."""
    spec = load_spec("qwen1.5-0.5b")
    host_s = (11 * spec.layers + 2) * OWN.host_s / 2
    tpot = {}
    for way in ("vllm", "no_graph"):
        setup = run_of(f"hardware={hardware}", f"system.start=medusa/{way}")
        tpot[way] = simulate(setup, compiled=False).summary["tpot_s"]["p50"]
    assert tpot["vllm"] < 0.5 * host_s
    assert host_s < tpot["no_graph"] < host_s + tpot["vllm"]


def test_steps_longer_than_their_launches_do_not_change() -> None:
    prepared = run_of("hardware=a100_40").prepared
    table = prepared.tables[0][0]
    assert launched(table, 1e-6) is table
    slow = launched(table, 5e-3)
    assert slow.decode_attention_s[0] == 0.0
    gpu_s = table.body_s[1, 0] + table.head_s[1, 0]
    assert gpu_s + slow.decode_attention_s[1] == pytest.approx(5e-3)
    assert (slow.decode_attention_s >= table.decode_attention_s).all()


def test_stages_of_another_chip_are_named() -> None:
    def named(*words: str) -> list[str]:
        setup = run_of("system.start=medusa", *words)
        return [note for note in setup.notes if note.startswith("starts a100_40_vllm")]

    assert not named("hardware=a100_40")
    assert "measured on a100_40 stand for those of gh200" in named()[0]
    unlike = "fleet.parts=[{hardware: l40s, count: 1}, {hardware: a100_40, count: 1}]"
    assert "stand for those of l40s (" in named(unlike)[0]
    with pytest.raises(SettingError, match=r"system\.start\.measured='mine': expected one of"):
        run_of("system.start={mechanism: medusa, measured: mine}")
