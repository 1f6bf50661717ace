"""Files of measured rates: round trip, precedence, damage, changes on disk, and their use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pallas_kernels import tuned_results
from pallas_kernels.gemm import MACHINES, machine_for
from pallas_kernels.tuned_results import Tuned

DEVICE = "NVIDIA H200"


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tuned_results, "_PACKAGE", tmp_path / "package")
    monkeypatch.setenv(tuned_results.FOLDER_VARIABLE, str(tmp_path / "own"))
    (tmp_path / "package" / "tuned").mkdir(parents=True)
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


def rates(**machine: Any) -> Tuned:
    return Tuned(device=DEVICE, machine=machine)


def path_in(folder: Path) -> Path:
    return folder / tuned_results.file_name(DEVICE)


def test_round_trip_and_a_failed_write(own_folder: Path) -> None:
    path = path_in(own_folder)
    tuned_results.write(path, rates(link_gbps=50.0))
    with pytest.raises(ValueError, match="JSON"):
        tuned_results.write(path, rates(link_gbps=float("nan")))
    assert tuned_results.read(path) == tuned_results.load(DEVICE) == rates(link_gbps=50.0)
    assert [found.name for found in own_folder.iterdir()] == ["nvidia_h200.json"]


def test_own_rates_come_before_those_of_the_package(own_folder: Path, tmp_path: Path) -> None:
    tuned_results.write(path_in(own_folder), rates(link_gbps=60.0))
    tuned_results.write(
        path_in(tmp_path / "package" / "tuned"), rates(link_gbps=50.0, hbm_gbps=4000.0)
    )
    assert tuned_results.load(DEVICE).machine == {"link_gbps": 60.0, "hbm_gbps": 4000.0}


def test_a_changed_file_is_read_again(own_folder: Path) -> None:
    assert tuned_results.load(DEVICE) == rates()
    tuned_results.write(path_in(own_folder), rates(link_gbps=60.0))
    assert tuned_results.load(DEVICE) == rates(link_gbps=60.0)
    path_in(own_folder).unlink()
    assert tuned_results.load(DEVICE) == rates()


GOOD = json.dumps({"format": 3, "device": DEVICE, "machine": {}})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        GOOD.replace('"format": 3', '"format": 1'),
        GOOD.replace(DEVICE, "Other GPU"),
        GOOD.replace('"machine": {}', '"machine": {"link_gbps": -1}'),
        GOOD.replace('"machine": {}', '"machine": {"link_gbps": "fast"}'),
    ],
)
def test_a_damaged_file_is_left_aside_with_a_warning(text: str, own_folder: Path) -> None:
    assert json.loads(GOOD)["format"] == tuned_results.FORMAT
    path_in(own_folder).write_text(text)
    with pytest.warns(UserWarning, match=r"nvidia_h200\.json left aside"):
        found = tuned_results.load(DEVICE)
    assert found.machine == {}


def test_measured_rates_replace_the_datasheet(own_folder: Path) -> None:
    measured = rates(link_gbps=31.0, source="a probe")
    tuned_results.write(path_in(own_folder), measured)
    machine = machine_for(DEVICE)
    assert machine.link_gbps == 31.0
    assert "measured: link_gbps (a probe); else unmeasured" in machine.source
    assert machine_for(DEVICE, measured=False) == MACHINES[DEVICE]
