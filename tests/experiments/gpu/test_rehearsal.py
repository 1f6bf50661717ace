"""A run in which everything goes wrong: rows of finished tests survive, faults are named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.gpu import suite
from experiments.gpu.cases import Context, Limits
from experiments.gpu.rehearsal import FAULTS, cases
from experiments.gpu.runner import run_section
from experiments.gpu.sections import SECTIONS
from experiments.gpu.store import Store

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120.0

# A disk with room for so many bytes in a file: what is written beyond fails, after a part of it.
LITTLE_ROOM = """
import json, resource, sys, time
from experiments.gpu.cases import Case, Context
from experiments.gpu.runner import run_section
from experiments.gpu.store import Store
from pathlib import Path
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
ran = run_section(
    "section", "tests.experiments.gpu.misbehaving",
    [Case(spec={"do": "work", "number": n}) for n in range(12)],
    Store(Path(sys.argv[1]) / "section"), Context(backend="reference", scale="tiny"),
    provenance={"run": "r" + sys.argv[2]}, until=time.monotonic() + 300,
)
print(json.dumps([ran.ok, ran.left, ran.stopped, ran.over]))
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "experiments.gpu", "rehearsal", "--dry-run", *arguments]


def rows_in(archive: Path) -> list[dict[str, Any]]:
    """Return the rows that an archive of an unfinished run holds."""
    try:
        with tarfile.open(archive) as packed:
            lines = packed.extractfile("dry-run/rehearsal/parts.jsonl")
            assert lines is not None
            found = [json.loads(line) for line in lines.read().splitlines()]
    except (FileNotFoundError, KeyError):  # before the first row
        return []
    return [row for line in found for row in line.get("rows", ())]


def names(rows: Any) -> list[str]:
    return [row["test"].partition("::")[2] for row in rows]


@pytest.mark.slow
def test_every_fault_is_named_and_costs_only_itself(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        command("--out", str(out), "--case-limit", "2", "--first-case-limit", "5"),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = {row["test"].partition("::")[2]: row for row in Store(out / "dry-run/rehearsal").rows}
    assert {name: row.get("lost", row["status"]) for name, row in found.items()} == {
        "test_that_passes[1]": "ok",
        "test_that_passes[2]": "ok",
        "test_that_passes[3]": "ok",
        "test_that_fails": "failed",
        "test_that_hangs": "hung",
        "test_after_a_hang": "ok",
        "test_that_hangs_and_cannot_say_where": "hung",
        "test_that_crashes": "crashed",
        "test_after_a_crash": "ok",
        "test_that_exits": "crashed",
        "test_that_is_skipped": "skipped",
        "test_family_that_hangs[1]": "hung",
        "test_family_that_hangs[2]": "hung",
        "test_last": "ok",
    }
    assert "row 5, column 7" in found["test_that_fails"]["message"]
    assert "faults.py:" in found["test_that_hangs"]["reason"]
    assert "test_that_hangs" in found["test_that_hangs"]["reason"]
    assert "Segmentation fault" in found["test_that_crashes"]["reason"]
    assert "exit status 7" in found["test_that_exits"]["reason"]
    summary = (out / "dry-run.md").read_text()
    assert summary == (out / "dry-run/summary.md").read_text()
    assert "| rehearsal | 6 | 1 | 4 | 2 | 1 | 2 |" in summary
    named = [line for line in summary.splitlines() if line.startswith("- hung")]
    assert len(named) == 4
    assert "faults.py::test_that_hangs:" in named[0]
    assert summary in done.stdout
    with tarfile.open(out / "dry-run.tar.gz") as packed:
        assert {"dry-run/summary.md", "dry-run/rehearsal/rehearsal.parquet"} <= set(
            packed.getnames()
        )


@pytest.mark.slow
def test_killed_with_all_its_processes_it_leaves_an_archive_to_go_on_from(tmp_path: Path) -> None:
    archive = tmp_path / "back" / "gpu.tar.gz"
    run = subprocess.Popen(
        command("--out", str(tmp_path / "out"), "--archive", str(archive)),
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + PATIENCE_S
        while "test_that_fails" not in names(rows_in(archive)):
            assert run.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        worker = child_of(run.pid)  # it hangs in the next test, for as long as it may
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    assert names(rows_in(archive)) == [
        *(f"test_that_passes[{n}]" for n in (1, 2, 3)),
        "test_that_fails",
    ]
    assert "| rehearsal | 3 | 1 | 0 | 0 | 0 | 12 |" in (tmp_path / "back/gpu.md").read_text()
    until = time.monotonic() + PATIENCE_S
    while alive(worker):  # it is in a group of its own, and must not keep the GPU
        assert time.monotonic() < until
        time.sleep(0.05)
    again = subprocess.run(
        [
            *command("--out", str(tmp_path / "new"), "--resume", str(archive)),
            *("--minutes", "0.3"),  # enough to be asked what it runs on, not for the next test
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert "4 measured earlier" in again.stdout, again.stdout + again.stderr
    assert names(Store(tmp_path / "new/dry-run/rehearsal").rows)[:4] == names(rows_in(archive))


def test_told_to_stop_it_sums_up_what_there_is(tmp_path: Path) -> None:
    run = subprocess.Popen(
        command("--out", str(tmp_path)), stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert run.stdout is not None
    for line in run.stdout:
        if "test_that_fails" in line:
            run.terminate()
            break
    rest, _ = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 130
    assert "| rehearsal | 3 | 1 | 0 | 0 | 0 | 12 |" in rest
    store = Store(tmp_path / "dry-run/rehearsal")
    assert len(store.rows) == 4
    assert not any(store.given_up(case) for case in cases("tiny"))


def child_of(pid: int) -> int:
    """Return the process that the run started for its tests."""
    (child,) = (ROOT / f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # nobody need have waited for it


def test_the_deadline_in_the_middle_of_a_test_is_nobodys_fault(tmp_path: Path) -> None:
    ticks: Iterator[float] = iter([0.0] * 13)
    store = Store(tmp_path / "section")
    ran = run_section(
        "section",
        "experiments.gpu.rehearsal",
        cases("tiny"),
        store,
        Context(backend="reference", scale="tiny"),
        provenance={"run": "r"},
        until=4.0,
        limits=Limits(start_s=PATIENCE_S),
        clock=lambda: next(ticks, 4.0),  # time stands still until a test hangs
    )
    assert names(store.rows) == [
        *(f"test_that_passes[{n}]" for n in (1, 2, 3)),
        "test_that_fails",
    ]
    assert (ran.ok, ran.failed, ran.left, ran.stopped) == (3, 1, 12, "")
    assert not any(store.given_up(case) for case in cases("tiny"))


def test_a_full_disk_costs_the_rows_that_had_no_room_and_no_others(tmp_path: Path) -> None:
    def run(room: int) -> tuple[int, int, str, bool]:
        done = subprocess.run(
            [sys.executable, "-c", LITTLE_ROOM, str(tmp_path), str(room)],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stderr
        ok, left, stopped, disk = json.loads(done.stdout.splitlines()[-1])
        return ok, left, stopped, disk

    ok, left, stopped, disk = run(2500)
    assert 2 < ok < 11
    assert (ok + left, disk) == (12, True)
    assert "results cannot be written" in stopped
    assert [row["number"] for row in Store(tmp_path / "section").rows] == list(range(ok))
    assert run(1 << 20)[:2] == (12 - ok, 0)  # with room again it goes on where it stopped
    assert [row["number"] for row in Store(tmp_path / "section").rows] == list(range(12))


def test_a_file_of_tests_that_cannot_be_imported_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    (tmp_path / "test_good.py").write_text(
        "import pytest\npytestmark = pytest.mark.gpu\n\n"
        "@pytest.mark.limit_s(7)\n@pytest.mark.parametrize('a', [1, 2])\ndef test_a(a): pass\n"
    )
    broken, *good = suite.cases_of(suite.collected(tmp_path))
    assert broken.spec == {"test": "test_broken.py"}
    assert [(c.spec["test"], c.limit_s, c.most_s, c.group) for c in good] == [
        (f"test_good.py::test_a[{a}]", 7.0, suite.FIRST_LIMIT_S, "test_good.py::test_a")
        for a in (1, 2)
    ]
    told: list[dict[str, Any]] = []
    asked = iter([json.dumps({"test": name}) for name in ("test_broken.py", "gone.py::test_b")])
    server = suite.Server(asked, told.append, "reference")
    program = pytest.main([*suite._OPTIONS, str(tmp_path)], plugins=[server])
    assert program != 0
    assert [answer["status"] for answer in told if "status" in answer] == [
        "ready",
        "failed",
        "failed",
    ]
    assert "no_such_module" in str(told)


def test_pytest_that_cannot_list_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no tests"):
        suite.collected(tmp_path / "absent")


def test_what_compiles_is_told() -> None:
    program = (
        "import json, jax\nfrom experiments.gpu.suite import tell_of_compiling\n"
        "tell_of_compiling(lambda told: print(json.dumps(told)))\n"
        "jax.jit(lambda x: x + 1)(1.0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    begins = [i for i, one in enumerate(told) if one["compiling"]]
    ends = [i for i, one in enumerate(told) if not one["compiling"] and one["took_s"] > 0]
    assert begins, done.stderr
    assert ends[-1] > begins[-1]  # the clock runs again


def test_the_smoke_tests_are_right_on_the_reference(tmp_path: Path) -> None:
    section, store = SECTIONS["smoke"], Store(tmp_path / "smoke")
    ran = run_section(
        "smoke",
        section.module,
        section.cases("full"),
        store,
        Context(backend="reference", scale="tiny"),
        provenance={"run": "r"},
        until=time.monotonic() + 300,
    )
    assert (ran.ok, ran.skipped, ran.left) == (15, 1, 0), [row.get("message") for row in store.rows]


def test_the_rehearsed_tests_are_no_tests_of_the_project() -> None:
    assert not FAULTS.name.startswith("test_")
