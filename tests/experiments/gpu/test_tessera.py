"""The section `tessera`, rehearsed on the fake driver library."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from c2c.errors import SettingError
from c2c.systems.program.xla import read_dump
from experiments.gpu import device, tessera
from experiments.gpu.cases import Context, Row, Unmeasurable
from experiments.gpu.report import findings
from experiments.gpu.sections import SECTIONS
from experiments.tessera.on_gpu import rows_of
from tests.systems.program.fake.build import build, environment

TINY = Context(scale="tiny", backend="reference")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fake")
    environment(folder)  # skips without the bindings
    build(folder, ())
    return folder


def rows(what: str, driver: Path, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    case = next(c for c in tessera.cases("tiny") if c.spec["what"] == what)
    return tessera.measure(case.spec, TINY)


@pytest.mark.slow
def test_every_kernel_has_its_time_beside_the_tables(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *kernels, step = rows("kernels", driver, monkeypatch)
    launches = len(read_dump(tessera.FIXTURE).program.launches)
    assert sum(row["launches"] for row in kernels) == step["launches"] == launches
    for row in kernels:
        assert row["time_s"] > 0
        assert row["error"] == pytest.approx(row["predicted_s"] / row["time_s"] - 1)
    assert step["kernels_s"] == pytest.approx(sum(r["time_s"] * r["launches"] for r in kernels))
    errors = sorted(abs(row["error"]) for row in kernels)
    assert errors[0] <= step["median_error"] <= errors[-1]


@pytest.mark.slow
def test_recording_code_is_compared_launch_by_launch(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = rows("recorded", driver, monkeypatch)
    assert row["equal"] == row["launches"]
    assert 0 < row["inside"] == row["happened"] <= row["sites"]


@pytest.mark.slow
def test_a_step_is_split_over_two_contexts(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = rows("split", driver, monkeypatch)
    assert row["apart"] == "contexts"
    assert row["cuts"] == 0  # where the planner says
    assert row["equal"] == row["outputs"]
    assert row["sends"] >= row["segments"] > 3


@pytest.mark.slow
def test_an_older_request_is_timed_beside_a_younger_one(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = rows("priorities", driver, monkeypatch)
    assert row["priority"] == -5  # the fake's first
    assert min(row["alone_off_s"], row["beside_off_s"], row["beside_on_s"]) > 0


def test_the_aim_is_judged_by_the_steps_rows() -> None:
    step = {"status": "ok", "kernel": "the step", "weighted_error": 0.1}
    good = [{**step, "tokens": 8, "median_error": 0.1}, {"status": "ok", "kernel": "gemm"}]
    bad = {**step, "tokens": 64, "median_error": 0.2}

    def judged(rows: list[Row]) -> str:
        return next(f.status for f in findings({"tessera": rows}) if "Tessera" in f.aim)

    assert [judged([]), judged(good), judged([*good, bad])] == ["unmeasured", "pass", "fail"]


def test_what_takes_two_gpus_is_listed_as_unmeasured() -> None:
    left = [c for c in tessera.cases("full") if c.spec["what"] in tessera.UNMEASURED]
    assert len(left) == len(tessera.UNMEASURED)
    for case in left:
        with pytest.raises(Unmeasurable, match="one"):
            tessera.measure(case.spec, TINY)


def test_without_the_bindings_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "LOOK", "raise SystemExit(1)")
    with pytest.raises(Unmeasurable, match="make driver"):
        tessera.measure({"what": "kernels", "rows": 0}, TINY)


@pytest.mark.slow
def test_without_a_driver_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment(tmp_path)  # skips without the bindings
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    if shutil.which("nvidia-smi"):
        pytest.skip("there is a driver here")
    with pytest.raises(Unmeasurable, match="driver"):
        tessera.measure({"what": "recorded", "rows": 0}, TINY)


def test_it_runs_if_it_is_named_and_times_three_batch_sizes() -> None:
    assert "tessera" in SECTIONS
    kernels = [c.spec["rows"] for c in tessera.cases("full") if c.spec["what"] == "kernels"]
    assert len(kernels) == 3


@pytest.mark.parametrize(
    ("given", "why"),
    [({"what": "speed"}, "what='speed'"), ({"what": "split", "copies": 0}, "copies=0")],
)
def test_what_cannot_be_measured_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingError, match=why):
        rows_of({"step": str(tessera.FIXTURE), **given})
