"""Files of tuned results: round trip, precedence, damage, staleness, changes on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pallas_kernels import tuned_results
from pallas_kernels.tuned_results import Entry, Measurement, Tuned

DEVICE = "Test GPU"


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tuned_results, "_PACKAGE", tmp_path / "package")
    monkeypatch.setenv(tuned_results.FOLDER_VARIABLE, str(tmp_path / "own"))
    (tmp_path / "package" / "tuned").mkdir(parents=True)
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


def results(**changes: Any) -> Tuned:
    entry = Entry(
        op="hybrid_gemm",
        key={"m": 8, "k": 64, "dtype": "bfloat16"},
        source="abc",
        provenance={"jax": tuned_results.jax_version(), "date": "2026-01-01"},
        measurements=(
            Measurement(config={"tm": 64, "stagger": True}, alpha=0.5, time_s=1e-5, repeats=3),
            Measurement(config={"tm": 128, "stagger": False}, alpha=1.0, time_s=2e-5),
        ),
    )
    return Tuned(device=DEVICE, **({"entries": (entry,), "machine": {"link_gbps": 50.0}} | changes))


def path_in(folder: Path) -> Path:
    return folder / tuned_results.file_name(DEVICE)


def test_round_trip_and_no_rest_of_writing(own_folder: Path) -> None:
    tuned_results.write(path_in(own_folder), results())
    assert tuned_results.read(path_in(own_folder)) == results()
    assert tuned_results.load(DEVICE) == results()
    assert [path.name for path in own_folder.iterdir()] == ["test_gpu.json"]


def test_a_failed_write_leaves_the_old_file(own_folder: Path) -> None:
    tuned_results.write(path_in(own_folder), results())
    with pytest.raises(ValueError, match="JSON"):
        tuned_results.write(path_in(own_folder), results(machine={"link_gbps": float("nan")}))
    assert tuned_results.read(path_in(own_folder)) == results()
    assert [path.name for path in own_folder.iterdir()] == ["test_gpu.json"]


def test_own_results_come_before_those_of_the_package(own_folder: Path, tmp_path: Path) -> None:
    tuned_results.write(path_in(own_folder), results(machine={"link_gbps": 60.0}))
    package = {"link_gbps": 50.0, "hbm_gbps": 4000.0}
    tuned_results.write(
        path_in(tmp_path / "package" / "tuned"), results(machine=package, entries=())
    )
    found = tuned_results.load(DEVICE)
    assert found.machine == {"link_gbps": 60.0, "hbm_gbps": 4000.0}
    assert len(found.entries) == 1


def test_a_changed_file_is_read_again(own_folder: Path) -> None:
    assert tuned_results.load(DEVICE).entries == ()
    tuned_results.write(path_in(own_folder), results())
    assert len(tuned_results.load(DEVICE).entries) == 1
    assert tuned_results.load(DEVICE) is tuned_results.load(DEVICE)
    path_in(own_folder).unlink()
    assert tuned_results.load(DEVICE).entries == ()


def test_a_measurement_takes_the_place_of_the_one_before() -> None:
    first = results()
    (entry,) = first.entries
    again = replace(entry.measurements[0], time_s=5e-6)
    added = replace(entry.measurements[0], alpha=0.75)
    found = first.with_measurement(replace(entry, measurements=(again, added)), 40.0)
    assert found.entries[0].measurements == (entry.measurements[1], again, added)
    assert found.machine == first.machine  # 50 GB/s were reached before
    other = replace(entry, key={**entry.key, "m": 16})
    found = found.with_measurement(other, 55.0)
    assert [e.key["m"] for e in found.entries] == [8, 16]
    assert found.machine["link_gbps"] == 55.0
    assert "2026-01-01" in found.machine["source"]
    newer = replace(entry, source="abd", measurements=(again,))
    assert first.with_measurement(newer, 0.0).entries == (newer,)  # stale ones go


GOOD = json.dumps({"format": 2, "device": DEVICE, "machine": {}, "entries": []})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        GOOD.replace('"format": 2', '"format": 1'),
        GOOD.replace(DEVICE, "Other GPU"),
        GOOD.replace('"machine": {}', '"machine": {"link_gbps": -1}'),
        GOOD.replace('"machine": {}', '"machine": {"link_gbps": "fast"}'),
        GOOD.replace('"entries": []', '"entries": [{"op": "hybrid_gemm"}]'),
        GOOD.replace('"entries": []', '"entries": 3'),
        GOOD.replace(
            '"entries": []',
            '"entries": [{"op": "", "key": {}, "source": "", "provenance": {}, "measurements": '
            '[{"config": {}, "alpha": 0.5, "time_s": -1}]}]',
        ),
    ],
)
def test_a_damaged_file_is_left_aside_with_a_warning(text: str, own_folder: Path) -> None:
    assert json.loads(GOOD)["format"] == tuned_results.FORMAT
    path_in(own_folder).write_text(text)
    with pytest.warns(UserWarning, match=r"test_gpu\.json left aside"):
        found = tuned_results.load(DEVICE)
    assert found.entries == ()
    assert found.machine == {}
    assert "test_gpu.json left aside" in found.notes[0]
    tuned_results.load(DEVICE)  # said once


def test_fresh_means_this_source_and_this_jax() -> None:
    (entry,) = results().entries
    assert entry.fresh("abc")
    assert not entry.fresh("abd")
    other = Entry(
        op=entry.op, key=entry.key, source="abc", provenance={"jax": "0.1"}, measurements=()
    )
    assert not other.fresh("abc")


def test_the_hash_follows_the_source(tmp_path: Path) -> None:
    package = tmp_path / "package"
    for text in ("a", "b"):
        (package / "kernel.py").write_text(text)
        tuned_results.source_hash.cache_clear()
        first = tuned_results.source_hash(("kernel.py",))
        if text == "a":
            before = first
    assert first != before
    tuned_results.source_hash.cache_clear()


@pytest.mark.parametrize(
    "change",
    [{"time_s": 0.0}, {"time_s": float("nan")}, {"time_s": float("inf")}, {"alpha": 2.0}],
)
def test_a_measurement_has_a_time(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Measurement(**({"config": {}, "alpha": 1.0, "time_s": 1.0} | change))
