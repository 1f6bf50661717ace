"""Results of a GPU never replace what somebody else put there."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.gpu import report
from experiments.gpu.cases import Case
from experiments.gpu.files import pack
from experiments.gpu.guard import why_not
from experiments.gpu.store import Store


def results(folder: Path) -> None:
    store = Store(folder / "link")
    store.add_run("r1", {"commit": "abc", "started_at": "2026-01-01"})
    case = Case(spec={"m": 1})
    store.finish(case, [{"case": case.key, "status": "ok", "run": "r1"}])
    store.compact()
    report.write(folder, {"link": [case.key]})


def test_a_new_folder_and_one_with_results_are_fine(tmp_path: Path) -> None:
    folder, archive = tmp_path / "dev", tmp_path / "all.tar.gz"
    assert why_not(folder, archive) == ""
    results(folder)
    pack(folder, archive)
    assert why_not(folder, archive) == ""
    Store(folder / "link").begin(Case(spec={"m": 2}))
    assert why_not(folder, archive) == ""


@pytest.mark.parametrize(
    "name", ["summary.json", "summary.md", "link/link.parquet", "link/parts.jsonl"]
)
def test_files_of_others_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "dev" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    assert "expected to be absent" in why_not(tmp_path / "dev")


def test_an_archive_of_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "all.tar.gz").write_text("mine")
    assert "all.tar.gz" in why_not(tmp_path / "dev", tmp_path / "all.tar.gz")


def test_a_place_that_is_no_folder_is_refused() -> None:
    assert "expected a folder" in why_not(Path("/dev/null/dev"))


def test_results_set_aside_twice_are_both_kept(tmp_path: Path) -> None:
    for _ in range(2):
        results(tmp_path / "dev")
        Store(tmp_path / "dev" / "link").clear()
    kept = {p.name for p in (tmp_path / "dev" / "link").iterdir()}
    assert kept == {"old-1-link.parquet", "old-2-link.parquet"}
