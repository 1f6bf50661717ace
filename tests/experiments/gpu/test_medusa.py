"""The section `medusa`, rehearsed on the fake driver library."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from c2c.systems.program.xla import read_dump
from experiments.gpu import device, medusa
from experiments.gpu.cases import Context, Unmeasurable
from experiments.gpu.sections import SECTIONS
from tests.systems.program.fake.build import build, environment
from tests.systems.program.xla.make import DECODE


@pytest.mark.slow
def test_a_case_restores_what_was_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", environment(tmp_path)["LD_LIBRARY_PATH"])
    build(tmp_path, ())
    case, xla = medusa.cases("tiny")
    assert xla.spec["program"] == "xla"
    (row,) = medusa.measure(case.spec, Context(scale="tiny", backend="reference"))
    assert row["graphs"] == 1
    assert row["refused"] == 0
    assert row["nodes"] >= 20
    assert 0 < row["first_capture_s"] <= row["capture_s"]  # on demand, and all of them
    assert 0 < row["first_graph_s"] <= row["restore_s"]


@pytest.mark.slow
def test_xlas_steps_are_restored_by_the_drivers_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", environment(tmp_path)["LD_LIBRARY_PATH"])
    build(tmp_path, ())

    def compiled(folder: Path, *_: object) -> None:
        for rows in ("4", "8"):  # the compiler may not be here; one step stands for two
            shutil.copytree(DECODE, folder / rows)

    monkeypatch.setattr(medusa.steps, "compile_steps", compiled)
    spec = {"program": "xla", "batch_sizes": "4 8", **medusa.SMALL}
    (row,) = medusa.measure(spec, Context(scale="tiny", backend="reference"))
    assert (row["graphs"], row["refused"]) == (2, 0)
    assert row["nodes"] == 2 * len(read_dump(DECODE).program.launches)
    assert min(row["launch_s"], row["first_launch_s"], row["one_by_one_s"]) > 0


def test_without_the_bindings_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "LOOK", "raise SystemExit(1)")
    with pytest.raises(Unmeasurable, match="make driver"):
        medusa.measure({"program": "computing:0"}, Context(scale="tiny"))


def test_it_runs_if_it_is_named() -> None:
    assert "medusa" in SECTIONS
    assert len(medusa.cases("full")) > len(medusa.cases("tiny"))
