"""Results that survive a run that is cut short, and what counts as done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from experiments.gpu.cases import Case
from experiments.gpu.store import ATTEMPTS, Store

A, B = Case(spec={"m": 1}), Case(spec={"m": 2})
ALWAYS = Case(spec={"what": "bound"}, always=True)


def row(case: Case, status: str = "ok", run: str = "r1", **more: object) -> dict[str, object]:
    return {"case": case.key, "status": status, "run": run, **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "section"


def test_results_are_there_at_once_and_after_compaction(folder: Path) -> None:
    store = Store(folder)
    store.add_run("r1", {"commit": "abc"})
    store.begin(A)
    store.finish(A, [row(A, time_s=0.5), row(A, time_s=0.7, note="x")])
    again = Store(folder)
    assert again.rows == store.rows
    assert again.runs["r1"] == {"commit": "abc"}
    again.compact()
    assert not (folder / "parts.jsonl").exists()
    third = Store(folder)
    assert [r["time_s"] for r in third.rows] == [0.5, 0.7]
    assert third.rows[1]["note"] == "x"
    assert "note" not in third.rows[0]
    assert third.runs["r1"] == {"commit": "abc"}
    assert third.finished() == {A.key}


def test_a_line_that_was_cut_short_is_dropped(folder: Path) -> None:
    store = Store(folder)
    store.finish(A, [row(A)])
    with store.parts.open("a") as parts:
        parts.write('{"finish": "half')
    again = Store(folder)
    assert again.finished() == {A.key}
    again.finish(B, [row(B)])
    assert Store(folder).finished() == {A.key, B.key}


def test_a_line_without_room_leaves_nothing_of_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(folder)
    store.finish(A, [row(A)])
    before = store.parts.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            store.finish(B, [row(B)])
    assert store.parts.read_bytes() == before
    store.begin(B)  # with room again: no line begins in the middle of another
    assert Store(folder).finished() == {A.key}


def test_cut_between_table_and_lines_nothing_counts_twice(folder: Path) -> None:
    store = Store(folder)
    store.add_run("r1", {})
    store.finish(A, [row(A)])
    store.finish(ALWAYS, [row(ALWAYS)])
    lines = store.parts.read_text()
    store.compact()
    store.parts.write_text(lines)  # as if the run had ended before they were removed
    assert len(Store(folder).rows) == 2


def test_a_case_measured_again_replaces_its_rows_but_bounds_are_kept_by_run(folder: Path) -> None:
    store = Store(folder)
    for run in ("r1", "r2"):
        store.finish(A, [row(A, run=run)])
        store.finish(ALWAYS, [row(ALWAYS, run=run)])
    assert [(r["case"], r["run"]) for r in store.rows] == [
        (ALWAYS.key, "r1"),
        (A.key, "r2"),
        (ALWAYS.key, "r2"),
    ]


def test_failed_counts_as_done_unless_asked_and_skipped_never(folder: Path) -> None:
    store = Store(folder)
    store.finish(A, [row(A, "failed")])
    store.finish(B, [row(B, "skipped")])
    assert store.finished() == {A.key}
    assert store.finished(retry_failed=True) == frozenset()


def test_a_case_that_takes_its_run_with_it_is_given_up(folder: Path) -> None:
    for _ in range(ATTEMPTS):
        store = Store(folder)
        assert not store.given_up(A)
        store.begin(A)
        store.compact()  # keeps the count
    assert Store(folder).given_up(A)
    store = Store(folder)
    store.begin(B)
    store.interrupt(B)
    store.begin(B)
    store.interrupt(B)
    assert not Store(folder).given_up(B)


def test_set_aside(folder: Path) -> None:
    store = Store(folder)
    store.finish(A, [row(A)])
    store.compact()
    store.clear()
    assert store.rows == ()
    assert Store(folder).rows == ()
    assert (folder / "old-1-section.parquet").exists()
