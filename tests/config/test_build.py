"""A configuration becomes a checked run, or is refused before any work."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import c2c.models
from c2c.config import RunSetup, build, load, prefers_compiled, run_totals, simulate
from c2c.cost import load_engine
from c2c.errors import SettingError
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
    assert len(made("mig=3x12gb").prepared.kind_of) == 3
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
    ("system", "requests", "compiled"),
    [("c2cserve", 100, False), ("c2cserve", 301, True), ("c2cserve_plus", 100, True),
     ("c2cserve_plus", 30, False)],
)  # fmt: skip
def test_a_short_run_is_compiled_where_its_steps_are_all_walked(
    system: str, requests: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[prefers_compiled.__module__], "is_compiled", lambda: False)
    setup = made(f"system={system}", f"workload.requests={requests}")
    assert prefers_compiled(setup) is compiled


def test_constants_follow_the_hardware_and_a_chip_nobody_measured_is_named() -> None:
    assert made().serving.constants.name == "gh200"
    h100 = made("hardware=h100_sxm", "system=serverlessllm")
    assert h100.serving.constants.name == "h100_sxm"
    assert not any("measured h100" in note for note in h100.notes)
    rubin = made("hardware=rubin")
    assert rubin.serving.constants.name == "datasheet"
    assert any("nobody has measured rubin" in note for note in rubin.notes)
    assert made("hardware=rubin", "constants=gh200").serving.constants.name == "gh200"


def test_an_engine_brings_its_host_and_routing_its_skew() -> None:
    engine = made("engine=sglang-0.5.8.post1").serving.constants
    own = load_engine("sglang-0.5.8.post1").step_overhead_s
    assert engine.step_overhead_s == own != made().serving.constants.step_overhead_s
    moe = ("catalog=moe", "system=serverlessllm")
    even = made(*moe).prepared.tables[0][0]
    skewed = made(*moe, "routing.kind=power_law", "routing.skew=1.2").prepared.tables[0][0]
    assert (skewed.body_hbm_bytes[2:] < even.body_hbm_bytes[2:]).any()


def test_files_of_a_run_are_those_it_reads(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,6,6\n")
    setup = build(load(["workload=file", f"workload.path={trace}"]))
    names = {p.name for p in setup.files}
    groups = {
        "hardware", "mig_table", "node", "fleet", "calibration", "collectives", "engines",
        "kernels", "operations", "starts",
    }  # fmt: skip
    assert names == groups | {"t.csv"}
    assert trace not in made().files


def many_ids(path: Path, requests: int = 200, ids: int = 40) -> Path:
    rows = "".join(f"{k * 0.5},svc-{(k * k) % ids},300,60\n" for k in range(requests))
    path.write_text(f"arrival_s,model,prompt_tokens,output_tokens\n{rows}")
    return path


def test_each_id_of_a_trace_is_a_model_unless_ids_share_the_catalogs(tmp_path: Path) -> None:
    trace = many_ids(tmp_path / "t.csv")
    told = ["workload=file", f"workload.path={trace}", "mig=7x12gb", "system=c2cserve"]
    own = build(load(told))
    ids = own.workload.description["assignment"]["map"]
    assert {d.name for d in own.serving.deployments} == set(ids)
    assert len(ids) > 7
    assert {d.spec.name for d in own.serving.deployments} == {"llama-3-8b", "llama-3-3b"}
    for d in own.serving.deployments:  # targets of the catalog's model with this spec
        assert d.tpot_slo_s == {"llama-3-8b": 0.2, "llama-3-3b": 0.1}[d.spec.name]
    shared = build(load([*told, "workload.assignment=popularity_rank"]))
    (line,) = [note for note in shared.notes if "ids of the trace" in note]
    assert line.startswith(f"{len(ids)} ids of the trace are served by 2 models (")
    assert not any("ids of the trace" in note for note in own.notes)
    switches = [simulate(s, compiled=False).summary["run"]["switches"] for s in (own, shared)]
    assert switches[0] > 5 * switches[1]


def test_ids_of_the_hub_are_the_catalogs_models(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    names = ["Qwen/Qwen3-30B-A3B"] * 3 + ["hosted_vllm/Qwen/Qwen3-32B"]
    rows = "".join(f"{k},{name},50,5\n" for k, name in enumerate(names))
    trace.write_text(f"arrival_s,model,prompt_tokens,output_tokens\n{rows}")
    # Models that a shipped catalog lacks are added; a catalog of the user's own is left alone.
    added = build(load(["workload=file", f"workload.path={trace}", "mig=1x96gb", "slo.ttft_s=3"]))
    served = {d.name: (d.spec.name, d.ttft_slo_s) for d in added.serving.deployments}
    assert list(served) == ["llama-3-8b", "llama-3-3b", "qwen3-30b-a3b", "qwen3-32b"]
    assert served["qwen3-30b-a3b"] == ("qwen3-30b-a3b", 3.0)
    catalog = "catalog.models=[{spec: qwen3-32b}, {spec: qwen3-30b-a3b}]"
    setup = build(load(["workload=file", f"workload.path={trace}", catalog, "mig=1x96gb"]))
    said = setup.workload.description["assignment"]["requests"]
    assert said == {"qwen3-30b-a3b": 3, "qwen3-32b": 1}
    assert [d.name for d in setup.serving.deployments] == ["qwen3-32b", "qwen3-30b-a3b"]


def test_the_shared_trace_of_hub_ids_is_served_by_its_models(
    shared_part: Callable[[str], Path],
) -> None:
    trace = shared_part("cases2/simulator/hub_ids.csv")
    catalog = "catalog.models=[{spec: qwen3-32b}, {spec: qwen3-30b-a3b}]"
    setup = build(load(["workload=file", f"workload.path={trace}", catalog, "mig=1x96gb"]))
    said = setup.workload.description["assignment"]["requests"]
    assert said == {"qwen3-30b-a3b": 12, "qwen3-32b": 4}


def test_configs_of_models_count_among_a_runs_files(tmp_path: Path) -> None:
    config = Path(c2c.models.__file__).parent / "configs" / "llama-3-8b.json"
    (tmp_path / "mine").mkdir()
    for name in ("config.json", "weights.safetensors"):
        (tmp_path / "mine" / name).write_text(config.read_text())
    told = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "mine" / "hf_quant_config.json").write_text(json.dumps(told))
    setup = made(f"catalog.models=[{{spec: {tmp_path / 'mine'}}}]")
    mine = {file.name for file in setup.files if tmp_path in file.parents}
    assert mine == {"config.json", "hf_quant_config.json"}
    whole = made("catalog.models=[{spec: llama-3-8b}]").prepared.fleet.costs.kv_bytes
    assert (2 * setup.prepared.fleet.costs.kv_bytes).tolist() == whole.tolist()


def test_simulation_in_memory_accounts_for_every_request() -> None:
    setup = made("seed=3", "timeline.rows=50", "system=serverlessllm")
    result = simulate(setup, compiled=False)
    assert result.requests.schema == RECORD_SCHEMA
    assert result.requests.column("id").to_pylist() == list(range(40))
    assert result.summary["requests"] == result.summary["finished"] == 40
    assert result.summary["run"] == run_totals(setup.prepared, result.stats)
    assert 0 < len(result.phases) <= 50
    assert set(result.phases.column("kind").to_pylist()) <= {"load", "prefill", "decode", "mixed"}
    used = result.summary["run"]["utilisation"]
    assert 0 < used["link_mean"] <= 1
    steps_s = (result.stats.busy_s - result.stats.load_s).sum()
    assert used["instance_busy_mean"] == pytest.approx(steps_s / result.stats.end_s)
    assert result.stats.load_s.sum() > 0
    assert result.requests.equals(simulate(setup, compiled=False).requests)


def test_failed_requests_have_a_reason_and_no_times() -> None:
    result = simulate(
        made("workload.lengths=fixed", "workload.prompt_tokens=200000"), compiled=False
    )
    assert result.summary["failed"] == 40
    assert set(result.requests.column("reason").to_pylist()) == {"context_exceeds_model"}
    assert result.requests.column("finished_s").to_numpy().tolist() != [0.0] * 40
    assert result.summary["attainment"]["both"] == 0


def test_other_values_of_a_setup_are_those_of_a_composed_one() -> None:
    given = ["workload=poisson", "workload.requests=20", "system=c2cserve_plus"]
    setup = build(load(given))
    again = setup.with_(seed=3, workload__rate_rps=2, system__max_batch=8)
    composed = build(load([*given, "seed=3", "workload.rate_rps=2", "system.max_batch=8"]))
    assert again.settings == composed.settings
    assert again.serving.system == composed.serving.system
    assert setup.seed == 0
    whole = setup.with_(engine="vllm").settings  # text in place of null: checked by the schema
    assert whole == build(load([*given, "engine=vllm"])).settings
    for change, message in (
        ({"sead": 1}, "sead=1: expected|sead='?None|sead"), ({"seed": -1}, "seed=-1"),
        ({"seed": "x"}, "seed='x'"), ({"workload__rate_rps": None}, "workload.rate_rps"),
    ):  # fmt: skip
        with pytest.raises(SettingError, match=message):
            setup.with_(**change)
