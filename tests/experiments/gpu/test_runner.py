"""Cases that hang, die or raise cost only themselves; a run goes on where it stopped."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.gpu.cases import Case, Context
from experiments.gpu.runner import GROUPS_LOST, LOST_IN_GROUP, Ran, run_section
from experiments.gpu.store import Store

MODULE = "tests.experiments.gpu.misbehaving"
LEAST_S = Case(spec={}).least_s
CONTEXT = Context(backend="reference", scale="tiny", seed=3)


def do(what: str, *, limit_s: float = 60.0, group: str = "", **more: Any) -> Case:
    return Case(spec={"do": what, **more}, limit_s=limit_s, group=group)


def run(folder: Path, cases: list[Case], *, run_id: str = "r1", **options: Any) -> Ran:
    return run_section(
        "section",
        MODULE,
        cases,
        Store(folder / "section"),
        CONTEXT,
        provenance={"run": run_id},
        **{"until": time.monotonic() + 300} | options,
    )


def rows(folder: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in Store(folder / "section").rows:
        found.setdefault(row["do"], []).append(row)
    return found


def test_bad_cases_do_not_take_others_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [do("work"), do("two"), do("hang", limit_s=0.5), do("die"), do("raise"), do("skip")]
    ran = run(tmp_path, [*cases, do("more work")], labels={"dry_run": True})
    assert (ran.ok, ran.failed, ran.skipped, ran.left) == (3, 3, 1, 0)
    found = rows(tmp_path)
    assert {name: of[0]["status"] for name, of in found.items()} == {
        "work": "ok",
        "two": "ok",
        "hang": "failed",
        "die": "failed",
        "raise": "failed",
        "skip": "skipped",
        "more work": "ok",
    }
    assert len(found["two"]) == 2
    assert found["work"][0]["pid"] == found["two"][0]["pid"]  # one process while all goes well
    assert found["work"][0]["pid"] != found["more work"][0]["pid"]
    assert "no answer after" in found["hang"][0]["reason"]
    assert "in measure" not in found["hang"][0]["reason"]
    assert re.search(r"misbehaving\.py:\d+ measure", found["hang"][0]["reason"])
    assert [found[name][0].get("lost") for name in ("hang", "die", "raise")] == [
        "hung",
        "crashed",
        None,
    ]
    assert "last words" in found["die"][0]["reason"]
    assert found["raise"][0]["reason"] == "ValueError: k=3: expected 4"
    assert found["skip"][0]["reason"] == "not here"
    assert found["work"][0]["seed"] == 3
    assert all(row["dry_run"] and row["run"] == "r1" for of in found.values() for row in of)
    assert "ValueError: k=3" in capsys.readouterr().out


def test_goes_on_where_it_stopped(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    cases = [do(name, mark=str(marks)) for name in ("a", "raise", "skip", "b")]
    assert run(tmp_path, cases[:2]).ok == 1
    ran = run(tmp_path, cases, run_id="r2")
    assert (ran.ok, ran.skipped, ran.earlier) == (1, 1, 2)
    assert marks.read_text().split() == ["a", "raise", "skip", "b"]
    ran = run(tmp_path, cases, run_id="r3", retry_failed=True)
    assert (ran.ok, ran.failed, ran.skipped) == (0, 1, 1)
    assert {row["run"] for of in rows(tmp_path).values() for row in of} == {"r1", "r2", "r3"}


def test_what_always_runs_does_so_only_beside_something_new(tmp_path: Path) -> None:
    bound = Case(spec={"do": "bound"}, always=True)
    assert run(tmp_path, [bound, do("a")]).ok == 2
    assert run(tmp_path, [bound, do("a")], run_id="r2").ok == 0
    assert run(tmp_path, [bound, do("a"), do("b")], run_id="r3").ok == 2
    assert [row["run"] for row in rows(tmp_path)["bound"]] == ["r1", "r3"]


def test_stops_in_time(tmp_path: Path) -> None:
    clock: Iterator[float] = iter([0.0, 1.0, 2.0, 100.0, 101.0])
    cases = [do("a"), do("b"), do("c")]
    ran = run(tmp_path, cases, until=100 + LEAST_S / 2, clock=lambda: next(clock))
    assert (ran.ok, ran.left) == (1, 2)
    assert run(tmp_path, cases, run_id="r2").ok == 2


def test_a_case_cut_off_by_the_end_of_the_run_is_no_failure(tmp_path: Path) -> None:
    cases = [replace(do("hang", limit_s=600), least_s=0.1)]
    for _ in range(3):  # more often than a case may end its run
        ran = run(tmp_path, cases, until=time.monotonic() + 1.5)
        assert (ran.failed, ran.left) == (0, 1)
    assert rows(tmp_path) == {}


def test_gives_up_where_nothing_survives(tmp_path: Path) -> None:
    ran = run(tmp_path, [do("die", number=i) for i in range(GROUPS_LOST + 2)])
    assert (ran.failed, ran.left) == (GROUPS_LOST, 2)
    assert "last words" in ran.stopped


def test_leaves_what_is_like_others_that_ended_their_process(tmp_path: Path) -> None:
    dying = [do("die", group="a", number=i) for i in range(LOST_IN_GROUP + 3)]
    ran = run(tmp_path, [*dying, do("work", group="b")])
    assert (ran.ok, ran.failed, ran.left, ran.stopped) == (1, LOST_IN_GROUP, 3, "")
    again = run(tmp_path, [*dying, do("work", group="b")], run_id="r2")
    assert (again.ok, again.failed, again.left) == (0, LOST_IN_GROUP, 1)  # they had their turn


def test_quick_results_do_for_a_quick_run_only(tmp_path: Path) -> None:
    for labels, ok in (({"quick": True}, 1), ({"quick": True}, 0), ({}, 1), ({"quick": True}, 0)):
        assert run(tmp_path, [do("work")], labels=labels).ok == ok


def test_a_module_that_cannot_be_imported_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path / "section")
    until = time.monotonic() + 300
    ran = run_section(
        "s", "tests.no_such_module", [do("a")], store, CONTEXT, provenance={"run": "r"}, until=until
    )
    assert "no_such_module" in ran.stopped
    assert (ran.failed, ran.left) == (0, 1)  # no case's fault
    assert store.rows == ()
