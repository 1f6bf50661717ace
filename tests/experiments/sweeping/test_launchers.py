"""Sweeps on every launcher that is installed: a bad point, killed, shared with another process."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from c2c.config import build, load
from experiments.simulation import execute, folder_of
from tests.tiers import tiered

COMMAND = [sys.executable, "-m", "c2c", "simulate"]
SMALL = ["workload=poisson", "workload.requests=60", "workload.rate_rps=2", "figures=false"]
RESULTS = ("requests.parquet", "summary.json")
SEEDS = (0, 1, 2)

LAUNCHERS = [
    pytest.param((), id="basic"),
    pytest.param(("hydra/launcher=cores",), id="joblib", marks=pytest.mark.slow),
    pytest.param(
        ("hydra/launcher=jobs", "hydra.sweeper.max_batch_size=4"),
        id="submitit",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        ("hydra/launcher=ray", "+hydra.launcher.init.num_cpus=2"), id="ray", marks=pytest.mark.slow
    ),
]


def start(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "-m", *SMALL, "out=out", *overrides],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


def digests(folder: Path) -> dict[str, str]:
    return {
        f"{run.name}/{name}": hashlib.sha256((run / name).read_bytes()).hexdigest()
        for run in folder.glob("[!.]*")
        for name in RESULTS
    }


def rows(printed: str) -> list[str]:
    """Return the lines of the sweep's table of seeds."""
    table = printed[printed.rindex("goodput/s") :]
    return [line.strip() for line in table.splitlines() if re.match(r" -?\d+ ", line)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("undisturbed")
    for seed in SEEDS:
        execute(build(load([*SMALL, f"out={out}", f"seed={seed}"])))
    return digests(out)


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The settings that choose a launcher; skips where what it needs is not installed."""
    settings: tuple[str, ...] = request.param
    if "hydra/launcher=ray" in settings:
        request.getfixturevalue("ray_installed")
    return settings


def test_a_sweep_with_a_bad_point_that_is_killed_ends_as_if_undisturbed(
    tmp_path: Path, launcher: tuple[str, ...], undisturbed: dict[str, str]
) -> None:
    points = (*launcher, "seed=0,-1,1,2")
    killed = start(tmp_path, *points)
    until = time.monotonic() + 120
    # What it is doing when a second point has begun is different each time.
    while not list(tmp_path.glob("out/.sweeps/*/points/2.json")) and time.monotonic() < until:
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL

    again = start(tmp_path, *points)
    printed, said = again.communicate(timeout=300)
    assert again.returncode == 1, said
    assert digests(tmp_path / "out") == undisturbed
    assert [row.split()[0] for row in rows(printed)] == ["0", "-1", "1", "2"]
    assert [len(row.split()) > 6 for row in rows(printed)] == [True, False, True, True]
    assert "\nseed=-1: seed=-1: expected a whole number" in printed
    assert "cut short" not in said


@pytest.mark.soak
def test_a_hundred_points_on_two_cores_with_a_kill_in_the_middle(
    tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    points = ("hydra/launcher=cores", "hydra.launcher.n_jobs=2", "seed=range(100)")
    (tmp_path / "calm").mkdir()
    (tmp_path / "killed").mkdir()
    calm = start(tmp_path / "calm", *points)
    printed, said = calm.communicate(timeout=1800)
    assert calm.returncode == 0, said
    expected = digests(tmp_path / "calm" / "out")
    assert undisturbed.items() <= expected.items()

    killed = start(tmp_path / "killed", *points)
    out = tmp_path / "killed" / "out"
    until = time.monotonic() + 1800
    while len(list(out.glob("*/DONE"))) < 50 and time.monotonic() < until:
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    made = {done.parent.name: done.stat().st_mtime_ns for done in out.glob("*/DONE")}
    assert 50 <= len(made) < 100

    again = start(tmp_path / "killed", *points)
    reprinted, said = again.communicate(timeout=1800)
    assert again.returncode == 0, said
    assert [row.split()[0] for row in rows(reprinted)] == [row.split()[0] for row in rows(printed)]
    assert len(rows(reprinted)) == len(expected) / len(RESULTS) == 100
    assert digests(out) == expected
    # what was there was not made again
    assert made.items() <= {d.parent.name: d.stat().st_mtime_ns for d in out.glob("*/DONE")}.items()


@pytest.mark.slow
def test_two_sweeps_of_the_same_points_share_them(
    tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    both = [start(tmp_path, "seed=0,1,2") for _ in range(2)]
    for each in both:
        printed, said = each.communicate(timeout=300)
        assert each.returncode == 0, said
        assert [row.split()[0] for row in rows(printed)] == ["0", "1", "2"]
        assert "error" not in printed
    assert digests(tmp_path / "out") == undisturbed


@pytest.mark.parametrize("dies", tiered([True, False]))
def test_a_point_that_another_process_holds_is_waited_for_at_the_end(
    tmp_path: Path, dies: bool
) -> None:
    """This process holds the point until the sweep waits for it, then ends it well or badly."""
    setup = build(load([*SMALL, f"out={tmp_path / 'out'}"]))
    sweeps: list[subprocess.Popen[str]] = []

    def hold(compiled: bool) -> None:
        sweeps.append(start(tmp_path, "seed=0,1"))
        assert sweeps[0].stderr is not None
        said = iter(sweeps[0].stderr.readline, "")
        assert any(line.startswith("waiting for another process") for line in said)
        assert list(tmp_path.glob("out/*_s1_*/DONE"))  # it did the other one meanwhile
        if dies:
            raise KeyboardInterrupt

    if dies:
        with pytest.raises(KeyboardInterrupt):
            execute(setup, before=hold)
    else:
        execute(setup, before=hold)
    printed, _ = sweeps[0].communicate(timeout=120)
    assert sweeps[0].returncode == int(dies)
    first, second = rows(printed)
    assert ("the process that worked in its folder ended" in printed) == dies
    assert ("made elsewhere" in first) == (not dies)
    assert "error" not in second
    assert folder_of(setup).exists()


@pytest.mark.slow
def test_a_point_whose_process_is_killed_is_a_row_and_status_1(tmp_path: Path) -> None:
    """A worker of joblib dies; the sweep says so, and the same command completes it."""
    long = ("hydra/launcher=cores", "seed=0,1", "workload.requests=2000000")
    sweep = start(tmp_path, *long)
    until = time.monotonic() + 120
    while not (begun := list(tmp_path.glob("out/*/.requests.parquet.*"))):
        assert sweep.poll() is None, sweep.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
    holder = next(
        int(line.split()[4])
        for line in Path("/proc/locks").read_text().splitlines()
        if line.split()[5].endswith(f":{(begun[0].parent / '.lock').stat().st_ino}")
    )
    os.kill(holder, signal.SIGKILL)
    printed, said = sweep.communicate(timeout=120)
    assert sweep.returncode == 1
    assert "the sweep was cut short" in said
    assert len(rows(printed)) == 2
    assert "its process was killed; run the same command to repeat it" in printed
