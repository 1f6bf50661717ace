"""Candidates of the section `tune`, the check of their results, and the file they leave."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.gpu import Context
from experiments.gpu.cases import Unmeasurable
from experiments.gpu.kernels import tuning
from experiments.gpu.kernels.candidates import candidates
from pallas_kernels.gemm import MACHINES, Gemm, plans, predict
from tests.tiers import tiered

H200 = MACHINES["NVIDIA H200"]


@pytest.mark.parametrize("m", [8, 512, 10240])
@pytest.mark.parametrize("top", tiered([1, 3, 8], 3))
def test_pruning_keeps_the_best_and_every_dataflow(m: int, top: int) -> None:
    gemm = Gemm(m=m, k=4096, n=16384)
    found = candidates(gemm, H200, top=top)
    assert len(found) == len(set(found)) == top
    everything = candidates(gemm, H200, top=10_000)
    staggered = [one.predicted_s for one in found if one.config.stagger]
    assert min(staggered) == min(one.predicted_s for one in everything)
    assert [one.predicted_s for one in found] == sorted(one.predicted_s for one in found)
    if top >= 3:
        assert {0.0, 1.0} < {one.alpha for one in found}
    if top == 8:
        assert {one.config.stagger for one in found} == {True, False}
    for one in found:
        expected = predict(gemm, one.config, plans(gemm, one.config, one.alpha), H200)
        assert one.predicted_s == float(expected.time_s)


@pytest.mark.parametrize("backend", tiered(["reference", "interpret"], "reference"))
def test_candidates_are_rows_and_a_file(backend: str, tmp_path: Path) -> None:
    context = Context(backend=backend, scale="tiny", folder=str(tmp_path))  # type: ignore[arg-type]
    cases = tuning.cases("tiny")
    for _ in range(2):  # the second time takes the place of the first
        rows = [row for case in cases for row in tuning.measure(case.spec, context)]
    assert len(rows) == len({(row["config"], row["alpha"]) for row in rows}) == tuning.TOP["tiny"]
    (file,) = (tmp_path / "tune" / "tuned").iterdir()
    found = json.loads(file.read_text())
    (entry,) = found["entries"]
    assert [one["time_s"] for one in entry["measurements"]] == [row["time_s"] for row in rows]
    assert entry["key"]["w_layout"] == "nk"  # as the transformer asks for it
    assert found["machine"] == {}  # nothing was measured of a GPU
    with pytest.raises(Unmeasurable, match="no folder"):
        tuning.measure(cases[0].spec, Context(backend="reference", scale="tiny"))
    assert len(tuning.cases("quick")) < len(tuning.cases("full"))


def test_a_wrong_candidate_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "wrong", lambda *_: "row 3 is off")
    context = Context(backend="reference", scale="tiny", folder=str(tmp_path))
    with pytest.raises(RuntimeError, match="row 3 is off"):
        tuning.measure(tuning.cases("tiny")[0].spec, context)
    assert list(tmp_path.iterdir()) == []


def test_the_sample_sees_one_wrong_tile() -> None:
    rng = np.random.default_rng(0)
    x, w, other = (
        rng.standard_normal(shape, np.float32) for shape in ((200, 128), (128, 320), (128, 320))
    )
    right = np.float32(x.astype(np.float64) @ w)
    assert tuning.wrong(right, x, w, 0) == ""
    for row, column in ((0, 0), (128, 256), (64, 192)):
        bad = right.copy()
        bad[row : row + 64, column : column + 64] += 0.1
        assert "times its bound" in tuning.wrong(bad, x, w, 0)
    hole = right.copy()
    hole[77, 99] = np.nan
    assert "NaN" in tuning.wrong(hole, x, w, 0)
    assert tuning.wrong(right, x, other, 0)  # another layer's product
