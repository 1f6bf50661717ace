"""Rows become findings and constants; rows come from the traffic model."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from c2c.cost import gemm_time, load_constants
from c2c.cost.calibration_file import as_yaml
from c2c.cost.constants import calibration_path
from c2c.hardware import conf_dir, link_gbps, load_platform, slices
from experiments.gpu import report
from experiments.gpu.cases import Case
from experiments.gpu.kernels import analysis, calibrate
from experiments.gpu.store import Store
from tests.experiments.gpu.kernels.synthetic import bounds, kernels, row


def status(rows: dict[str, list[dict[str, object]]], words: str) -> str:
    (found,) = [f for f in report.findings(rows) if words in f.aim]
    return found.status


def test_limits_are_those_of_the_same_run() -> None:
    spec = {"what": "hybrid", "k": 4096, "n": 16384, "m": 16, "sm_limit": 132, "alpha": 1.0}
    amounts = {"weight_bytes": 54 * 10**6, "activation_bytes": 10, "flops": 10.0, "time_s": 2e-3}
    (found, alone) = analysis.with_limits(
        [*bounds("r1"), row(spec, "r1", **amounts), row(spec, "r2", **amounts)]
    )
    assert found["binds"] == "link"
    assert found["limit_s"] == pytest.approx(1e-3)
    assert found["fraction"] == pytest.approx(0.5)
    assert found["link_gbps"] == pytest.approx(27)
    assert "fraction" not in alone  # its run measured no bounds
    heavy = row(spec, "r1", **amounts | {"flops": 7e12, "time_s": 0.02})
    (found,) = analysis.with_limits([*bounds("r1"), heavy])
    assert (found["binds"], found["fraction"]) == ("flops", pytest.approx(0.5))
    small = row(spec | {"sm_limit": 16}, "r1", **amounts)
    (found,) = analysis.with_limits([*bounds("r1"), small])
    assert found["limit_s"] == pytest.approx(54e6 / 25e9)


def test_nothing_measured_is_nothing_claimed() -> None:
    for rows in ({}, {"kernels": bounds()}):
        assert {f.status for f in report.findings(rows)} == {"unmeasured"}


def test_aims_pass_and_fail_by_the_rows() -> None:
    good = {"kernels": kernels(slowdown=1.05)}
    assert status(good, "M <= 64") == "pass"
    assert status(good, "M >= 512") == "pass"
    assert status({"kernels": kernels(slowdown=1.4)}, "M >= 512") == "fail"
    assert status(good, "the choice of hybrid_gemm") == "pass"
    assert status(good, "copying the weights") == "pass"
    slow = {"kernels": kernels(slowdown=2.0)}
    assert status(slow, "M <= 64") == "fail"
    assert status(slow, "copying the weights") == "fail"
    assert status(good, "best alpha") == "by construction"


def test_other_aims() -> None:
    test = {"status": "ok", "case": "a", "run": "r", "result": "ok"}
    assert status({"correctness": [test]}, "correct at real sizes") == "pass"
    wrong = test | {"case": "b", "status": "failed", "result": "failure"}
    assert status({"correctness": [test, wrong]}, "correct at real sizes") == "fail"
    ended = {"status": "failed", "case": "b", "run": "r", "reason": "hung"}
    assert status({"correctness": [test, ended]}, "correct at real sizes") == "fail"
    assert (
        status({"correctness": [test | {"status": "skipped", "result": "skipped"}]}, "real sizes")
        == "unmeasured"
    )
    read = {"status": "ok", "fact": "tma", "place": "host", "values_right": True}
    kept = {"status": "ok", "fact": "operand", "copied": False}
    assert status({"facts": [read, kept]}, "no copy by XLA") == "pass"
    assert status({"facts": [read, kept | {"copied": True}]}, "no copy by XLA") == "fail"
    assert status({"facts": [read | {"values_right": False}, kept]}, "no copy by XLA") == "fail"


def test_the_stored_constants_load_and_say_that_nothing_is_measured() -> None:
    constants = load_constants("h200_pcie5")
    platform = load_platform("h200_pcie5")
    time = gemm_time(
        16,
        16384,
        4096,
        1.0,
        slice_=slices(platform, "1x141gb")[0],
        constants=constants,
        link_gbps=link_gbps(platform.link, "measured"),
    )
    assert math.isclose(float(time.time_s), 2 * 4096 * 16384 / 55e9, rel_tol=0.05)
    for name, source in constants.sources.items():
        if source.kind != "measured":
            assert "unmeasured" in source.why.lower(), name
    text = calibration_path("h200_pcie5").read_text("utf-8")
    # rewriting changes what was measured only
    assert text.endswith(as_yaml(*calibrate.updated(constants, {}, "")))


def test_calibration_takes_what_the_rows_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "conf"
    shutil.copytree(conf_dir(), conf)
    monkeypatch.setenv("C2C_CONF", str(conf))
    before = load_constants("h200_pcie5")
    results = tmp_path / "nvidia-h200"
    store = Store(results / "kernels")
    store.add_run("r1", {"started_at": "2027-01-02T03:04:05+00:00", "device": "NVIDIA H200"})
    for r in kernels(slowdown=1.4):
        store.finish(Case(spec={"case": r["case"]}), [r])
    facts = Store(results / "facts")
    facts.finish(Case(spec={"fact": "launch"}), [row({"fact": "launch"}, kernel_s=2.5e-6)])
    assert calibrate.main([str(results), "--write"]) == 0
    after = load_constants("h200_pcie5")
    assert after.mma_efficiency == pytest.approx(700 / 989, rel=1e-4)
    assert after.hbm_efficiency == pytest.approx(4200 / 4800)
    assert after.link_efficiency == pytest.approx(54 / 1.4 / 64, rel=1e-3)
    assert after.launch_s == 2.5e-6
    assert after.reduce_gbps_per_sm != before.reduce_gbps_per_sm
    assert after.switch_dense_s == before.switch_dense_s
    changed = {n for n, s in after.sources.items() if s.kind == "measured"}
    assert changed == {
        "mma_efficiency",
        "hbm_efficiency",
        "link_efficiency",
        "launch_s",
        "reduce_gbps_per_sm",
    }
    assert all("(nvidia-h200, 2027-01-02)" in after.sources[n].why for n in changed)
    assert "wrote h200_pcie5.yaml" in capsys.readouterr().out


def test_calibration_refuses_dry_runs(tmp_path: Path) -> None:
    store = Store(tmp_path / "kernels")
    for r in kernels(rows=(16,)):
        store.finish(Case(spec={"case": r["case"]}), [r | {"dry_run": True}])
    assert calibrate.main([str(tmp_path)]) == 1


@pytest.mark.parametrize("devices", [["NVIDIA H100"], ["NVIDIA H200", "NVIDIA H100"], [None], []])
@pytest.mark.parametrize("option", [[], ["--write"]])
def test_calibration_refuses_rows_of_another_device(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    devices: list[str | None],
    option: list[str],
) -> None:
    conf = tmp_path / "conf"
    shutil.copytree(conf_dir() / "calibration", conf / "calibration")
    shutil.copytree(conf_dir() / "hardware", conf / "hardware")
    shutil.copytree(conf_dir() / "mig_table", conf / "mig_table")
    monkeypatch.setenv("C2C_CONF", str(conf))
    before = calibration_path("h200_pcie5").read_bytes()
    store = Store(tmp_path / "results" / "kernels")
    for number, device in enumerate(devices):
        named = {} if device is None else {"device": device}
        store.add_run(f"r{number}", {"started_at": "2027-01-02T03:04:05+00:00"} | named)
    for r in kernels(rows=(16,)):
        store.finish(Case(spec={"case": r["case"]}), [r])
    assert calibrate.main([str(tmp_path / "results"), *option]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "expected rows of NVIDIA H200 alone" in said.err
    assert calibration_path("h200_pcie5").read_bytes() == before
