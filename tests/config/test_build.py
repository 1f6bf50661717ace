"""From a configuration to a checked run, and what is refused before any work."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from c2c.config import RunSetup, build, load, run_totals, simulate
from c2c.errors import DataError, SettingError
from c2c.hardware import MigConfig
from c2c.metrics import RECORD_SCHEMA

SMALL = ("workload=poisson", "workload.requests=40", "workload.rate_rps=2")


def made(*overrides: str) -> RunSetup:
    return build(load([*SMALL, *overrides]))


def layout(setup: RunSetup) -> str:
    assert isinstance(setup.serving.mig, MigConfig)
    return setup.serving.mig.name


def test_defaults_serve_the_dense_catalog_on_one_gh200() -> None:
    setup = build(load())
    serving = setup.serving
    assert (serving.platform.name, layout(setup), serving.superchips) == ("gh200", "7x12gb", 1)
    assert (serving.system.name, serving.link_variant) == ("c2cserve", "measured")
    assert [d.name for d in serving.deployments] == ["llama-3-8b", "llama-3-3b"]
    assert setup.workload.models == tuple(d.name for d in serving.deployments)


def test_a_catalog_larger_than_host_memory_is_served_and_said() -> None:
    setup = made("catalog=fleet89")
    assert 0 < setup.prepared.held.sum() < len(setup.prepared.held)
    assert "of 89 models" in setup.notes[-1]
    assert not any("from disk" in note for note in made("catalog=dense16").notes)


def test_auto_layout_follows_the_system_and_is_said() -> None:
    resident, streaming = made("system=serverlessllm"), made()
    assert (layout(resident), layout(streaming)) == ("1x96gb", "7x12gb")
    assert "1x96gb" in resident.notes[0]
    given = made("system=serverlessllm", "mig=2x48gb")
    assert (layout(given), given.notes) == ("2x48gb", ())


def test_overridden_values_reach_the_hardware() -> None:
    plain = made()
    scaled = made("scale.link=2")
    assert scaled.prepared.link_capacity_gbps == 2 * plain.prepared.link_capacity_gbps
    assert made("link=datasheet").prepared.link_capacity_gbps == 450
    assert len(made("mig=7x12gb", "mig.instances=3").prepared.kind_of) == 3
    assert made("hardware.link.measured_gbps=300").prepared.link_capacity_gbps == 300


def test_targets_can_be_replaced() -> None:
    setup = made("slo.ttft_s=3", "slo.tpot_s=0.5")
    assert {(d.ttft_slo_s, d.tpot_slo_s) for d in setup.serving.deployments} == {(3.0, 0.5)}


def test_a_plain_mapping_builds_the_same_run() -> None:
    setup = made("system.max_batch=16")
    again = build(setup.settings)
    assert again.serving == setup.serving
    assert again.settings == setup.settings
    assert "_target_" not in OmegaConf.to_yaml(OmegaConf.create(dict(setup.settings)))


@pytest.mark.parametrize(
    ("overrides", "field", "allowed"),
    [
        (["mig=7x12gb", "hardware=b200"], "mig", "7x23gb"),
        (["catalog.models=[{spec: nope}]"], "model", "llama-3-8b"),
        (["hardware.host.memory_bytes=10e9"], "catalog.llama-3-8b", "host memory"),
        (["slo.ttft_s=0.001"], "catalog.llama-3-8b.ttft_slo_s", "fastest any slice"),
        (["slo.tpot_s=0.001"], "catalog.llama-3-8b.tpot_slo_s", "streaming the weights"),
        (["slo.tpot_s=-1"], "slo.tpot_s", "above 0"),
        (["workload.rate_rps=-1"], "workload.rate_rps", "above 0"),
        (["workload.requests=0"], "workload.requests", "above 0"),
        (["seed=-1"], "seed", "at least 0"),
        (["superchips=0"], "superchips", "above 0"),
        (["link=fast"], "link", "datasheet, measured"),
        (["constants=nope"], "constants", "gh200"),
        (["timeline.rows=-1"], "timeline.rows", "at least 0"),
        (["weights_start=tape"], "weights_start", "'host' or 'disk'"),
        (["system.load.policy=magic"], "system.load.policy", "resident"),
        (["system.place=random_idle"], "system.place", "policy of place"),
        (["system.preempt.after_s=-1"], "system.preempt.after_s", "above 0"),
        (["system/chunk=fixed", "system.chunk.tokens=1.5"], "system.chunk.tokens", "whole"),
        (["+system.alpha.foo=1"], "system.alpha.foo", "deadband"),
        (["system.load.start_s=-1"], "system.load.start_s", "at least 0"),
        (["hardware.gpu.sm_count=-4"], "hardware.gpu.sm_count", "above 0"),
        (["system=serverlessllm", "catalog=dense_70b"], "catalog.llama-3-70b", "room for a KV"),
        (["workload=file"], "workload.path", "Parquet or CSV"),
        (["workload=file", "workload.path=nowhere/x.csv"], "workload.path", "existing"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    overrides: list[str], field: str, allowed: str
) -> None:
    with pytest.raises(SettingError) as caught:
        made(*overrides)
    assert caught.value.field == field
    assert allowed in caught.value.allowed


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("empty.csv", b"", "empty"),
        ("no_rows.csv", b"arrival_s,model,prompt_tokens,output_tokens\n", "no"),
        ("corrupt.parquet", b"PAR1 and then nothing of the kind", ""),
        ("not.parquet", b"hello", "PAR1"),
        ("negative.csv", b"arrival_s,prompt_tokens,output_tokens\n0,5,-5\n", "negative"),
        ("columns.csv", b"when,what\n1,2\n", "columns"),
    ],
)
def test_traces_that_cannot_be_used_are_refused(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        made("workload=file", f"workload.path={tmp_path / name}")
    assert caught.value.source.endswith(name)
    assert problem in caught.value.problem


def test_files_of_a_run_are_those_it_reads(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,6,6\n")
    names = {p.name for p in made("workload=file", f"workload.path={trace}").files}
    assert names == {"t.csv", "gh200.yaml", "hardware", "mig", "kernel"}
    assert trace not in made().files


def test_simulation_in_memory_accounts_for_every_request() -> None:
    setup = made("seed=3", "timeline.rows=50")
    result = simulate(setup, compiled=False)
    assert result.requests.schema == RECORD_SCHEMA
    assert result.requests.column("id").to_pylist() == list(range(40))
    assert result.summary["requests"] == result.summary["finished"] == 40
    assert result.summary["run"] == run_totals(setup.prepared, result.stats)
    assert 0 < len(result.phases) <= 50
    assert set(result.phases.column("kind").to_pylist()) <= {"switch", "prefill", "decode", "mixed"}
    used = result.summary["run"]["utilisation"]
    assert 0 < used["link_mean"] <= 1
    assert 0 < used["instance_busy_mean"] <= 1
    assert result.requests.equals(simulate(setup, compiled=False).requests)


def test_failed_requests_have_a_reason_and_no_times() -> None:
    result = simulate(
        made("workload.lengths=fixed", "workload.prompt_tokens=200000"), compiled=False
    )
    assert result.summary["failed"] == 40
    assert set(result.requests.column("reason").to_pylist()) == {"context_exceeds_model"}
    assert result.requests.column("finished_s").to_numpy().tolist() != [0.0] * 40
    assert result.summary["attainment"]["both"] == 0
