"""The search over fleets: its space, that it finds and goes on, its front, bad settings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from c2c.errors import SettingError
from experiments import search
from experiments.answers import study as module
from experiments.answers.fleets import FleetSpace
from experiments.answers.kernel_lock import KernelLock
from experiments.answers.points import Point
from experiments.answers.study import Tried, front_of, open_study, run_trials

COMMAND = [sys.executable, "-m", "experiments.search"]
# Two systems, two layouts, two sizes: eight points of 60 requests each.
TINY = (
    "workload=poisson", "workload.requests=60", "workload.rate_rps=2", "catalog=dense6",
    "system=c2cserve,serverlessllm_fast", "mig=4x24gb,7x12gb", "superchips=1,2",
    "system/chunk=profiled", "figures=false", "search.trials=5",
)  # fmt: skip


def space(*overrides: str, **more: Any) -> FleetSpace:
    defaults = {"systems": ["c2cserve", "serverlessllm"], "chunks": ["own", 512],
                "superchips": [1, 2, 4]}  # fmt: skip
    return FleetSpace(overrides, None, **(defaults | more))


def test_what_the_command_line_names_is_no_default_dimension() -> None:
    whole = space("workload=poisson")
    assert sorted(whole.dimensions) == ["chunk", "superchips", "system"]
    assert (whole.size, whole.plans, whole.systems) == (12, True, ["c2cserve", "serverlessllm"])
    several = "system.engines.residents=2,4"
    some = space("superchips=range(1,9)", "system=c2cserve_plus", "mig=7x12gb", several)
    assert sorted(some.dimensions) == ["chunk", "superchips", "system.engines.residents"]
    assert (some.size, some.plans, some.systems) == (32, False, ["c2cserve_plus"])
    assert "chunk" not in space("system.chunk.tokens=256,512").dimensions
    assert space("workload.rate_rps=interval(1,2)").size == float("inf")


def test_a_point_is_a_command_line() -> None:
    one = space("workload=poisson").settings(
        {"system": "c2cserve_plus", "superchips": 2, "chunk": "512", "mig": "4x24gb"}
    )
    assert (one["system"]["name"], one["superchips"], one["mig"]["name"]) == (
        "c2cserve_plus", 2, "4x24gb",
    )  # fmt: skip
    assert one["system"]["chunk"] == {"policy": "fixed", "tokens": 512}
    own = space("workload=poisson").settings({"system": "c2cserve", "chunk": "own"})
    assert own["system"]["chunk"] != one["system"]["chunk"]
    with pytest.raises(SettingError, match="mig='nope'"):
        space("mig=7x12gb,nope").check()


def runner(asked: list[dict[str, Any]]) -> type:
    """Return a runner that computes: more chips are quicker, `serverlessllm` fails."""

    class Runner:
        def __init__(self, workers: int) -> None:
            self._waiting: list[tuple[int, dict[str, Any]]] = []

        def __enter__(self) -> Runner:
            return self

        def __exit__(self, *_: object) -> None:
            return

        def ask(self, token: int, settings: dict[str, Any]) -> None:
            asked.append(settings)
            self._waiting.append((token, settings))

        def done(self) -> list[tuple[int, Point]]:
            waiting, self._waiting = self._waiting, []
            return [(token, self._point(settings)) for token, settings in waiting]

        def _point(self, settings: dict[str, Any]) -> Point:
            chips = settings["superchips"]
            if settings["system"]["name"] == "serverlessllm":
                return Point(folder=None, summary={}, error="it does not fit")
            summary = {
                "run": {"chips": chips}, "span_s": 3600.0, "ttft_s": {"p99": 1.0 / chips},
                "tpot_s": {"p99": 0.1},
                "verdict": {"state": "missed" if chips == 1 else "served", "binds": "link",
                            "met": 0.9 if chips == 1 else 1.0},
            }  # fmt: skip
            return Point(folder=Path(f"run{chips}"), summary=summary)

    return Runner


def searched(path: Path, monkeypatch: pytest.MonkeyPatch, trials: int, **more: Any) -> Any:
    asked: list[dict[str, Any]] = []
    tried: list[Tried] = []
    monkeypatch.setattr(module, "PointRunner", runner(asked))
    study = open_study(path)
    run_trials(
        study, space("workload=poisson", "mig=7x12gb"), trials=trials,
        begin_with=[{"system": "c2cserve", "superchips": 4, "chunk": "own"}],
        more=("figures=false",), wanted=0.99, seed=0, workers=2, alone_first=True,
        on_point=tried.append, **more,
    )  # fmt: skip
    return study, tried, asked


def test_all_points_are_tried_once_and_the_front_is_of_those_that_meet_the_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, tried, asked = searched(tmp_path / "study", monkeypatch, trials=50)
    assert tried[0].params == {"system": "c2cserve", "superchips": 4, "chunk": "own"}
    assert len(asked) == len({tuple(sorted(t.params.items())) for t in tried}) == 12
    assert all(settings["figures"] is False for settings in asked)
    failed = [t for t in tried if t.params["system"] == "serverlessllm"]
    assert all(
        (t.values, t.meets, t.told["error"]) == (None, False, "it does not fit") for t in failed
    )
    front = {t.params["superchips"] for t in tried if t.number in front_of(study)}
    assert front == {2, 4}  # one chip misses its targets
    best = search._best([t for t in tried if t.number in front_of(study)])
    assert best is not None
    assert best.params["superchips"] == 2
    assert best.values == (2.0, 0.5, 0.1)


@pytest.mark.slow
def test_a_study_goes_on_where_it_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = searched(tmp_path / "whole", monkeypatch, trials=9)[1]
    searched(tmp_path / "cut", monkeypatch, trials=5)
    cut = open_study(tmp_path / "cut")
    lost = cut.ask(space("workload=poisson", "mig=7x12gb").dimensions)  # its process was killed
    _, tried, asked = searched(tmp_path / "cut", monkeypatch, trials=9)
    params = [t.params for t in tried]
    assert params[:5] == [t.params for t in whole[:5]]
    assert len(asked) == 4
    assert len({tuple(sorted(p.items())) for p in params}) == 9
    assert lost.params in params


def test_a_damaged_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study").write_text("no journal\n" * 3)
    with pytest.raises(SettingError, match="a study of Optuna, whole"):
        open_study(tmp_path / "study")


def test_the_lock_of_a_killed_process_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    taken = (
        "import os, signal; from pathlib import Path;"
        "from experiments.answers.kernel_lock import KernelLock;"
        f"KernelLock(Path({str(path)!r} + '.held')).acquire(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", taken]).returncode == -signal.SIGKILL
    assert not open_study(path).trials
    first, second = (KernelLock(tmp_path / "x") for _ in range(2))
    first.acquire()
    waiting = threading.Thread(target=second.acquire)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    first.release()
    waiting.join(20)
    assert not waiting.is_alive()


@pytest.mark.slow
def test_the_command_killed_and_given_again_tries_what_is_left(tmp_path: Path) -> None:
    command = [*COMMAND, *TINY, "out=out"]
    killed = subprocess.Popen(
        command, cwd=tmp_path, start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 120
    while len(list(tmp_path.glob("out/points/*/DONE"))) < 2 and time.monotonic() < until:
        assert killed.poll() is None
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("out/points/*/DONE")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    (answer,) = tmp_path.glob("out/gh200_*/answer.json")
    found = json.loads(answer.read_text())
    assert found["answer"] in done.stdout
    rows = pq.read_table(answer.parent / "search.parquet").to_pylist()
    assert len(rows) == found["points"] == 5
    assert {row["run"] for row in rows if row["run"]} == {
        p.parent.name for p in tmp_path.glob("out/points/*/DONE")
    }
    front = [row for row in rows if row["on_front"]]
    for one in front:
        assert one["meets"]
        assert not any(
            other["meets"] and all(other[c] < one[c] for c in module.OBJECTIVES) for other in rows
        )
    assert found["best"]["gpu_hours"] == min(row["gpu_hours"] for row in front)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("search.trials=0", "search.trials=0: expected a whole number above 0"),
        ("search.chunks=[many]", "search.chunks='many': expected own or a number of tokens"),
        ("search.superchips=[a]", "search.superchips='[a]': expected a value of type"),
        ("search.x=1", "expected a key among chunks, layouts"),
        ("hardware=gh200,h100_sxm", "expected one platform, whose layouts are planned"),
        ("mig=7x12gb,nope", "mig='nope': expected one of"),
        ("system=c2cserve,nope", "system='nope': expected one of"),
        ("workload.rate_rps=choice()", "override='workload.rate_rps=choice()': expected key=value"),
        ("-m", "option='-m': expected no sweep"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    argument: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip

    monkeypatch.chdir(tmp_path)
    assert search.main(["workload=poisson", "workload.requests=60", argument]) == 2
    got = capsys.readouterr()
    assert said in got.err
    assert got.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
