"""Tessera's measurements on a driver, rehearsed on the fake driver library."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from c2c.errors import SettingError
from c2c.systems.program.xla import read_dump
from experiments.children import ROOT, answer_of
from experiments.papers.tessera.on_gpu import rows_of
from tests.systems.program.fake.build import build, environment

FIXTURE = ROOT / "tests" / "systems" / "program" / "xla" / "decode"


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("fake")
    result = environment(folder)  # skips without the bindings
    build(folder, ())
    return result


def rows(what: str, env: dict[str, str], **more: Any) -> list[dict[str, Any]]:
    asked = {"what": what, "step": str(FIXTURE), "tokens": 2, "seconds": 0.0, "repetitions": 2}
    command = [sys.executable, "-m", "experiments.papers.tessera.on_gpu", json.dumps(asked | more)]
    result: list[dict[str, Any]] = answer_of(command, RuntimeError, env=env)
    return result


@pytest.mark.slow
def test_every_kernel_has_its_time_beside_the_tables(env: dict[str, str]) -> None:
    *kernels, step = rows("kernels", env)
    launches = len(read_dump(FIXTURE).program.launches)
    assert sum(row["launches"] for row in kernels) == step["launches"] == launches
    for row in kernels:
        assert row["error"] == pytest.approx(row["predicted_s"] / row["time_s"] - 1)
    assert step["kernels_s"] == pytest.approx(sum(r["time_s"] * r["launches"] for r in kernels))


@pytest.mark.slow
def test_recording_code_is_compared_launch_by_launch(env: dict[str, str]) -> None:
    (row,) = rows("recorded", env)
    assert row["equal"] == row["launches"]
    assert 0 < row["inside"] == row["happened"] <= row["sites"]


@pytest.mark.slow
def test_a_step_is_split_over_two_contexts(env: dict[str, str]) -> None:
    (row,) = rows("split", env, cuts=0, is_apart=True)
    assert row["equal"] == row["outputs"]
    assert row["sends"] >= row["segments"] > 3


@pytest.mark.slow
def test_an_older_request_is_timed_beside_a_younger_one(env: dict[str, str]) -> None:
    (row,) = rows("priorities", env)
    assert min(row["alone_off_s"], row["beside_off_s"], row["beside_on_s"]) > 0


@pytest.mark.parametrize(
    ("given", "why"),
    [({"what": "speed"}, "what='speed'"), ({"what": "split", "copies": 0}, "copies=0")],
)
def test_what_cannot_be_measured_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingError, match=why):
        rows_of({"step": str(FIXTURE), **given})
