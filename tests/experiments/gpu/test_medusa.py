"""The section `medusa`, rehearsed on the fake driver library."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.gpu import medusa
from experiments.gpu.cases import Context, Unmeasurable
from experiments.gpu.sections import DEFAULT, SECTIONS
from tests.systems.program.fake.build import build, environment


def test_a_case_restores_what_was_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", environment(tmp_path)["LD_LIBRARY_PATH"])
    build(tmp_path, ())
    (case,) = medusa.cases("tiny")
    (row,) = medusa.measure(case.spec, Context(scale="tiny", backend="reference"))
    assert row["graphs"] == 1
    assert row["refused"] == 0
    assert row["nodes"] >= 20


def test_without_the_bindings_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(medusa, "BINDINGS", tmp_path / "none")
    with pytest.raises(Unmeasurable, match="make driver"):
        medusa.measure({"program": "computing:0"}, Context(scale="tiny"))


def test_it_runs_if_it_is_named() -> None:
    assert "medusa" in SECTIONS
    assert "medusa" not in DEFAULT
    assert len(medusa.cases("full")) > len(medusa.cases("tiny"))
