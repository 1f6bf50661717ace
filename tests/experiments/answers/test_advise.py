"""The command that advises: its space, that it finds the cheapest and goes on, bad settings."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from c2c.config import build, load, plain_settings, simulate
from c2c.errors import SettingError
from c2c.hardware import load_platform
from c2c.runs import source_key
from experiments import advise
from experiments.answers import points
from experiments.answers.fleets import FleetSpace
from experiments.answers.model_error import held_out_error
from experiments.simulation import CODE, execute, finished

# Two chips, two systems and two layouts of each chip: eight kinds of fleets.
TINY = (
    "workload=poisson", "workload.requests=100", "catalog=dense6", "hardware=gh200,h100_sxm",
    "system=c2cserve_plus,serverlessllm_fast", "system.max_batch=64", "slo.tpot_s=0.15",
    "slo.ttft_s=1", "figures=false", "advise.seeds=[0]", "advise.most=4",
)  # fmt: skip


def space(*overrides: str) -> FleetSpace:
    return FleetSpace(overrides, None, systems=["c2cserve_plus", "aegaeon"])


def test_what_the_command_line_leaves_open_is_compared() -> None:
    whole = space("workload=poisson").arms()
    chips = {arm.params["hardware"] for arm in whole}
    assert {"gh200", "h100_sxm"} <= chips
    assert "rubin" not in chips  # which has no price
    assert {arm.params["system"] for arm in whole} == {"c2cserve_plus", "aegaeon"}
    named = space("hardware=gh200", "mig=7x12gb,1x96gb", "system.max_batch=range(2,4)").arms()
    assert len(named) == 2 * 2 * 2
    assert all(arm.usd_per_hour == 2.29 for arm in named)
    assert named[0].name == "mig=7x12gb system.max_batch=2 system=c2cserve_plus"
    own = space("hardware=rubin", "mig=1x288gb", "+hardware.gpu.usd_per_hour=9").arms()
    assert own[0].usd_per_hour == 9.0


@pytest.mark.slow
def test_a_node_is_one_candidate_at_the_price_of_all_its_gpus() -> None:
    drawn = ("workload=poisson", "workload.requests=10")
    (tessera,) = space("system=tessera", "node=h100_rtx", *drawn).arms()
    assert "mig" not in tessera.params
    gpus = [load_platform(name).gpu for name in ("h100_sxm", "rtx_pro_6000")]
    assert tessera.usd_per_hour == sum(gpu.usd_per_hour or 0.0 for gpu in gpus)
    assert tessera.power_w == sum(gpu.power_w or 0.0 for gpu in gpus)
    with pytest.raises(
        SettingError, match=r"node\.usd_per_hour=None: expected a price, which a100"
    ):
        space("system=cocoserve", *drawn).arms()
    for more, usd in (
        ("system.layout.prompt_devices=0", 3.0),
        ("system.layout.prompt_devices=1", 6.0),
    ):
        (weaver,) = space("system=weaver", "+node.usd_per_hour=3", more, *drawn).arms()
        assert weaver.usd_per_hour == usd
    mixed = space("system=tessera,c2cserve_plus", "hardware=gh200", "mig=7x12gb", *drawn)
    assert [dict(arm.params) for arm in mixed.arms()] == [
        {"system": "tessera"}, {"system": "c2cserve_plus"},
    ]  # fmt: skip
    with pytest.raises(SettingError, match=r"usd_per_hour='free': expected a number above 0"):
        space("system=weaver", "+node.usd_per_hour=free", *drawn).arms()


def test_a_fleet_of_unlike_chips_is_one_candidate_at_the_price_of_its_chips() -> None:
    found = FleetSpace(
        ["hardware=gh200", "mig=7x12gb"], None, systems=["c2cserve_plus"], fleets=["h100_rtx"]
    ).arms()
    assert [arm.params.get("fleet") for arm in found] == [None, "h100_rtx"]
    chips = [load_platform(name).gpu for name in ("h100_sxm", "rtx_pro_6000")]
    assert found[1].usd_per_hour == sum(gpu.usd_per_hour or 0.0 for gpu in chips)
    assert found[1].power_w == sum(gpu.power_w or 0.0 for gpu in chips)
    given = ["fleet.parts=[{hardware:h100_sxm,count:3},{hardware:rtx_pro_6000}]"]
    (own,) = FleetSpace(given, None, systems=["c2cserve_plus"]).arms()
    assert own.usd_per_hour == 3 * chips[0].usd_per_hour + chips[1].usd_per_hour  # type: ignore[operator]
    params = {"fleet": "h100_rtx", "system": "c2cserve_plus"}
    setup = build(space("workload=poisson").settings(params, {"superchips": 2}))
    assert [part.count for part in setup.serving.parts] == [2, 2]


def test_values_are_set_without_composing_again() -> None:
    found = space("workload=poisson").settings({"hardware": "gh200"}, {"workload.max_requests": 7})
    assert found["workload"]["max_requests"] == 7
    assert space("workload=poisson").settings({}, {})["workload"]["max_requests"] == 0


@pytest.mark.parametrize(
    "words",
    [
        ("hardware=gh200,l40s", "mig=1x96gb,auto", "system=weaver,aegaeon"),
        ("system.max_batch=32,64", "hardware=gh200,rubin", "mig=7x12gb"),
        ("system.max_batch=128,64", "system=weaver,c2cserve"),  # 128 is c2cserve's own
        ("hardware=rubin,gh200_144", "+hardware.gpu.usd_per_hour=9", "mig=1x288gb"),
        ("hardware=gh200,l40s", "hardware.gpu.hbm_gbps=1000", "mig=1x48gb"),
    ],
)  # fmt: skip
def test_choices_that_are_composed_apart_are_those_composed_together(
    words: tuple[str, ...],
) -> None:
    found = FleetSpace(("workload=poisson", *words), None, systems=["c2cserve_plus"])
    for values in product(*found.open.values()):
        params = dict(zip(found.open, values, strict=True))
        whole = load([*found.fixed, *(f"{key}={value}" for key, value in params.items())])
        assert found.settings(params, {}) == plain_settings(whole)


@pytest.mark.parametrize(
    "rate",
    [
        pytest.param(4.0, marks=pytest.mark.slow),
        *(pytest.param(rate, marks=pytest.mark.soak) for rate in (0.5, 12.0)),
    ],
)
def test_the_answer_is_the_cheapest_of_all_fleets(
    rate: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The grid is served as well: no fleet of it that meets the targets is cheaper."""
    given = [*TINY, f"workload.rate_rps={rate}", f"out={tmp_path}"]
    assert advise.main(given) in (0, 1)
    (file,) = tmp_path.glob("poisson_*/answer.json")
    found = json.loads(file.read_text())
    whole = space(*(g for g in given if not g.startswith("advise.")))
    serving = []
    for arm, chips in product(whole.arms(), range(1, 5)):
        try:
            run = build(whole.settings(arm.params, {"superchips": chips}))
        except SettingError:
            continue
        if simulate(run).summary["verdict"]["state"] == "served":
            serving.append(chips * arm.usd_per_hour)
    best = found["fleets"][0]["usd_per_hour"] if found["fleets"] else None
    assert best == pytest.approx(min(serving)) if serving else best is None
    capsys.readouterr()
    assert advise.main(given) == int(not found["fleets"])  # already answered
    assert "already answered" in capsys.readouterr().out


def test_a_fleet_is_told_with_the_command_that_replays_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "own"
    (settings / "system").mkdir(parents=True)
    (settings / "system" / "mine.yaml").write_text(
        "defaults: [c2cserve_plus, _self_]\nname: mine\n"
    )
    given = [
        *(g for g in TINY if not g.startswith(("hardware=", "system=", "figures="))),
        "workload.rate_rps=1", "hardware=gh200", "mig=7x12gb", f"--config-dir={settings}",
        "system=mine",
        f"out={tmp_path}", "workload.requests=100",
    ]  # fmt: skip
    assert advise.main(given) == 0
    (folder,) = tmp_path.glob("poisson_*")
    best = json.loads((folder / "answer.json").read_text())["fleets"][0]
    said = capsys.readouterr().out
    assert best["command"] in said
    assert f"answer: {best['spoken']} for 2.29 USD/h is enough" in " ".join(said.split())
    assert (best["chips"], best["usd_per_hour"]) == (1, 2.29)
    assert best["kwh_per_million_tokens_at_most"] > 0.0
    assert best["breaks_at_load"] is None or best["serves_load"] < best["breaks_at_load"]
    assert best["error"] == held_out_error("gh200")[0]
    page = (folder / "answer.md").read_text()
    assert best["command"] in page
    assert "% longer" in page
    replayed = [w for w in shlex.split(best["command"])[2:] if not w.startswith("advise.")]
    replayed.remove(f"--config-dir={settings}")
    summary = simulate(build(load(replayed, folder=settings))).summary
    assert summary["ttft_s"]["p99"] == pytest.approx(best["ttft_p99_s"])
    rows = pq.read_table(folder / "advise.parquet").to_pylist()
    assert {row["run"] for row in rows if row["run"]} <= {
        path.name for path in (tmp_path / "points").iterdir()
    }
    assert (folder / "advise.png").stat().st_size > 0


def test_a_chip_has_the_error_of_measurements_that_nothing_was_fitted_to() -> None:
    errors = {name: held_out_error(name)[0] for name in ("h100_sxm", "gh200", "l40s", "rubin")}
    assert 0.05 < errors["h100_sxm"] < errors["l40s"] < 0.6
    assert errors["gh200"] == errors["h100_sxm"]  # whose constants it has
    assert held_out_error("gh200_144") == held_out_error("rubin")  # nobody measured either
    assert errors["rubin"] > errors["h100_sxm"]


def answered(
    arguments: Sequence[str], out: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, Any], str]:
    """Run the command; return its answer.json, and all that it printed."""
    advise.main([*arguments, "figures=false", f"out={out}"])
    (file,) = out.glob("*/answer.json")
    return json.loads(file.read_text()), capsys.readouterr().out


def trace(folder: Path, prompts: Sequence[int]) -> str:
    rows = [f"{0.5 * k},m,{prompt},20" for k, prompt in enumerate(prompts)]
    file = folder / "my.csv"
    file.write_text("\n".join(["arrival_s,model,prompt_tokens,output_tokens", *rows]))
    return f"workload.path={file}"


ONE_MODEL = ("catalog.models=[{spec: llama-3-8b}]", "slo.ttft_s=1", "slo.tpot_s=0.1")


def test_a_goal_that_no_fleet_reaches_is_refused_before_the_race(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path, [9000 if k % 40 == 7 else 200 for k in range(400)])
    words = ["workload=file", path, *ONE_MODEL, "hardware=gh200", "mig=1x96gb", "system=aegaeon"]
    assert advise.main([*words, f"out={tmp_path / 'runs'}"]) == 2
    assert capsys.readouterr().err == (
        "error: slo.attainment=0.99: expected at most 0.975. 10 of 400 requests are longer than "
        "their model's context (llama-3-8b: 8,192 tokens), so at most 97.5 % can be on target with "
        "any fleet. Set it lower, or take models with a longer context.\n"
    )
    assert not (tmp_path / "runs").exists()
    found, said = answered([*words, "slo.attainment=0.975"], tmp_path / "runs", capsys)
    # Nothing of this trace is drawn: two of the three seeds are asked, and one is kept.
    assert (found["fleets"][0]["met"], found["fleets"][0]["met_half"]) == (0.975, None)
    assert "seeds: equal runs" in said
    rows = pq.read_table(next((tmp_path / "runs").glob("*/advise.parquet"))).to_pylist()
    assert {row["seed"] for row in rows} == {0}


def test_none_has_the_best_fleet_and_a_reason_for_each_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One engine a model: more chips stand idle."""
    monkeypatch.setenv("COLUMNS", "120")  # the heading is in one line
    words = [
        "workload=poisson", "workload.rate_rps=60", "workload.requests=600", *ONE_MODEL,
        "slo.tpot_s=0.05", "hardware=gh200", "mig=1x96gb,7x12gb", "system=serverlessllm_fast",
        "advise.seeds=[0]",
    ]  # fmt: skip
    found, said = answered(words, tmp_path, capsys)
    assert found["fleets"] == []
    rows = pq.read_table(next(tmp_path.glob("*/advise.parquet"))).to_pylist()
    assert {row["chips"] for row in rows} == {1, 2}
    served, refused = found["left_out"]
    assert (served["fleet"], served["binds"]) == ("mig=1x96gb superchips=1", "idle_slices")
    assert 0.5 < served["met"] < 0.99
    assert served["out"] == "more chips change nothing"
    assert "leaves room for a KV cache" in refused["error"]
    assert found["answer"].startswith(
        f"answer: none. No fleet of up to 64 chips reaches 99 % of the requests on target; best: "
        f"1 x gh200, 1x96gb, serverlessllm_fast with {100 * served['met']:.4g} %"
    )
    assert "kind that does not serve" in said
    assert "leaves room for a KV cache" in next(tmp_path.glob("*/answer.md")).read_text()


@pytest.mark.slow
def test_fleets_of_one_price_are_ranked_by_what_they_have_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "workload=poisson", "workload.requests=150", "catalog=dense6", *ONE_MODEL[1:],
        "slo.tpot_s=0.15", "hardware=gh200,h100_sxm", "system=c2cserve_plus,aegaeon",
        "mig=1x96gb,1x80gb", "system.max_batch=64", "advise.seeds=[0]", "advise.keep=1",
    ]  # fmt: skip
    found, said = answered(words, tmp_path, capsys)
    keys = [
        (one["usd_per_hour"], not one["serves_if_slower"], -one["serves_load"], one["ttft_p99_s"])
        for one in found["fleets"]
    ]
    assert keys == sorted(keys)
    assert len({key[0] for key in keys}) < len(keys)
    # Each chip that was asked for has a row, though one is dearer.
    assert {one["params"]["hardware"] for one in found["fleets"]} == {"gh200", "h100_sxm"}
    assert "x h100_sxm" in said


@pytest.mark.slow
def test_an_interrupt_ends_in_the_answer_so_far(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "workload=poisson", "workload.requests=100", "workload.rate_rps=1", *ONE_MODEL,
        "hardware=gh200", "mig=1x96gb,2x48gb", "system=aegaeon", "advise.seeds=[0]",
        "figures=false", f"out={tmp_path}",
    ]  # fmt: skip

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(advise, "add_margins", interrupted)
        assert advise.main(words) == 130
    got = capsys.readouterr()
    assert "partial answer after" in got.out
    assert "1 x gh200" in got.out
    assert "2.29" in got.out
    assert got.err.endswith("interrupted; run the same command again to resume\n")
    assert not list(tmp_path.glob("*/answer.json"))
    assert advise.main(words) == 0
    assert "1 x gh200" in capsys.readouterr().out


def test_chips_without_a_price_are_named() -> None:
    found = space("workload=poisson")
    chips = {arm.params["hardware"] for arm in found.arms()}
    assert {"rubin", "gb300"} <= set(found.unpriced)
    assert chips.isdisjoint(found.unpriced)
    assert chips >= {"l40s", "gb200"}
    assert not space("workload=poisson", "hardware=gh200").unpriced


def test_finished_runs_are_read_and_not_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [  # 7x12gb has no room for a model in HBM
        "workload=poisson", "workload.requests=100", "workload.rate_rps=1", *ONE_MODEL,
        "hardware=gh200", "mig=1x96gb,7x12gb", "system=serverlessllm_fast", "advise.seeds=[0,1]",
    ]  # fmt: skip
    before, _ = answered(words, tmp_path, capsys)
    for folder in tmp_path.glob("poisson_*"):
        shutil.rmtree(folder)

    def never(settings: object) -> None:
        raise AssertionError(settings)

    monkeypatch.setattr(points, "build", never)
    assert before["left_out"][0]["error"]
    assert answered(words, tmp_path, capsys)[0] == before


def test_a_finished_run_is_not_read_if_its_data_or_code_changed(tmp_path: Path) -> None:
    path = trace(tmp_path, [100] * 20)
    words = ["workload=file", path, *ONE_MODEL, "figures=false", f"out={tmp_path / 'runs'}"]
    setup = build(load(words))
    code = {name: source_key(name) for name in CODE}
    assert finished(setup.settings, code) is None
    outcome = execute(setup)
    found = finished(setup.settings, code)
    assert found is not None
    assert (found.folder, found.summary) == (outcome.folder, outcome.summary)
    assert finished({**setup.settings, "seed": 1}, code) is None
    assert finished({**setup.settings, "resume": False}, code) is None
    assert finished(setup.settings, code | {CODE[0]: "other"}) is None
    trace(tmp_path, [100] * 21)
    assert finished(setup.settings, code) is None
