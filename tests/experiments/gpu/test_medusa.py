"""The section `medusa`, rehearsed on the fake driver library."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from c2c.systems.program.xla import read_dump
from experiments.gpu import device, medusa
from experiments.gpu.cases import Context, Unmeasurable
from experiments.gpu.sections import SECTIONS
from tests.systems.program.fake.build import build, build_blas, environment
from tests.systems.program.xla.make import DECODE


@pytest.mark.slow
def test_a_case_restores_what_was_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", environment(tmp_path)["LD_LIBRARY_PATH"])
    build(tmp_path, ())
    case, _, xla, *_ = medusa.cases("tiny")
    assert xla.spec["program"] == "xla"
    (row,) = medusa.measure(case.spec, Context(scale="tiny", backend="reference"))
    assert row["graphs"] == 1
    assert row["refused"] == 0
    assert row["nodes"] >= 20
    assert 0 < row["first_capture_s"] <= row["capture_s"]  # on demand, and all of them
    assert 0 < row["first_graph_s"] <= row["restore_s"]


@pytest.mark.slow
def test_the_driver_brings_a_process_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the calls, and what is said of a driver that has none of them."""
    monkeypatch.setenv("LD_LIBRARY_PATH", environment(tmp_path)["LD_LIBRARY_PATH"])
    build(tmp_path, ())
    (whole,) = (c for c in medusa.cases("tiny") if c.spec["program"] == "checkpoint")
    spec = {**whole.spec, "of": "computing:0"}
    (row,) = medusa.measure(spec, Context(scale="tiny", backend="reference"))
    assert row["held_bytes"] > 0
    assert all(row[f"{part}_s"] >= 0 for part in ("lock", "checkpoint", "restore", "unlock"))
    monkeypatch.setenv("FAKE_NO_CHECKPOINT", "1")
    with pytest.raises(Unmeasurable, match=r"cuCheckpointProcessLock: .*NOT_SUPPORTED"):
        medusa.measure(spec, Context(scale="tiny", backend="reference"))


@pytest.mark.slow
def test_a_library_that_nobody_declares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS: its launches are found in the graph, its kernels in the modules of a trigger."""
    monkeypatch.setenv("LD_LIBRARY_PATH", environment(tmp_path)["LD_LIBRARY_PATH"])
    build(tmp_path, ())
    build_blas(tmp_path)
    _, chain, *_ = medusa.cases("tiny")
    (row,) = medusa.measure(chain.spec, Context(scale="tiny", backend="reference"))
    assert (row["graphs"], row["refused"]) == (3, 0)
    # three products: one launch each at one row, two at eight and at sixty-four
    assert row["nodes"] == row["from_module"] == 3 * (1 + 2 + 2)


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


@pytest.mark.slow
def test_the_first_steps_are_told_apart() -> None:
    case = medusa.cases("tiny")[-1]
    assert [c.spec.get("update") for c in medusa.cases("full")][-3:] == [*medusa.MODES]
    (row,) = medusa.measure(case.spec, Context(scale="tiny", backend="reference"))
    assert min(row.values()) > 0
    assert len(row) == 4
    with pytest.raises(Unmeasurable, match="no such flag or value"):
        medusa.measure({**case.spec, "update": "NEVER"}, Context(scale="tiny"))


def test_without_the_bindings_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "LOOK", "raise SystemExit(1)")
    with pytest.raises(Unmeasurable, match="make driver"):
        medusa.measure({"program": "computing:0"}, Context(scale="tiny"))


def test_it_runs_if_it_is_named() -> None:
    assert "medusa" in SECTIONS
    assert len(medusa.cases("full")) > len(medusa.cases("tiny"))
