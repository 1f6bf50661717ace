"""A sweep killed at random moments, again and again: nothing is lost, nothing of others touched."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from c2c.config import build, load
from experiments.simulation import execute

COMMAND = [sys.executable, "-m", "c2c", "simulate", "-m"]
SMALL = ["workload=poisson", "workload.requests=40", "workload.rate_rps=2", "figures=false"]
LONGEST_S = 4.0  # to the end of a sweep's first points on two cores


def contents(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def complete(out: Path) -> dict[Path, dict[str, str]]:
    """Return the runs that are complete, with their results."""
    return {done.parent: contents(done.parent) for done in out.glob("*/DONE")}


@pytest.mark.parametrize(
    "kills", [pytest.param(5, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.soak)]
)
def test_a_sweep_killed_at_random_moments_loses_nothing(tmp_path: Path, kills: int) -> None:
    out = tmp_path / "out"
    points = [*SMALL, "out=out", f"seed=range({kills})"]
    theirs = {
        "out/thesis.tex": "years of work", "out/notes/DONE": "{}", "out/.sweeps/mine.txt": "a",
        "out/.draft.partial": "half a thought", "crash.json": "not ours",
    }  # fmt: skip
    for name, text in theirs.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    other = execute(build(load([*SMALL, f"folder={out / 'other'}", "seed=900"])))
    before = contents(other.folder)

    moments = random.Random(kills)  # which step of the work they hit differs each time
    made: dict[Path, dict[str, str]] = {}
    for _ in range(kills):
        sweep = subprocess.Popen(
            [*COMMAND, *points], cwd=tmp_path, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        time.sleep(moments.uniform(1.0, LONGEST_S))
        os.killpg(sweep.pid, signal.SIGKILL)
        sweep.wait()
        now = complete(out)
        for folder, results in made.items():
            assert now[folder] == results  # what was complete stays, to the byte
        made = now
    ended = subprocess.run([*COMMAND, *points], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr

    now = complete(out)
    for folder, results in made.items():
        assert now[folder] == results
    for seed in range(kills):  # each is complete, and of the inputs it should have
        setup = build(load([*SMALL, f"out={out}", f"seed={seed}"]))
        assert execute(setup).skipped, seed
    assert not list(out.glob("*_s*/.*.partial"))
    assert {name: (tmp_path / name).read_text() for name in theirs} == theirs
    assert contents(other.folder) == before
