"""Callbacks that log runs: one call a complete run, with its settings, numbers and pictures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from c2c.runs import summary_fields

# A package that writes each call into a file.
RECORDER = """
import contextlib, json

def note(*call):
    with open("calls.jsonl", "a") as file:
        file.write(json.dumps(call, default=str) + "\\n")

set_experiment = lambda name: note("set_experiment", name)
log_params = lambda values: note("log_params", values)
log_metrics = lambda values: note("log_metrics", values)
log_artifact = lambda path: note("log_artifact", path)
Image = str

class Run(contextlib.AbstractContextManager):
    log = staticmethod(lambda values: note("log", values))

    def __exit__(self, *error):
        pass

def start_run(run_name):
    note("start_run", run_name)
    return Run()

def init(project, name, config):
    note("init", project, name, config)
    return Run()
"""


def simulate(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "c2c", "simulate", "workload.requests=20", "out=out", *overrides],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip


def calls(folder: Path) -> list[list[object]]:
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]


def numbers(run: Path) -> dict[str, object]:
    fields = summary_fields(json.loads((run / "summary.json").read_text()))
    return {name: value for name, value in fields.items() if value is not None}


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("mlflow", "wandb"):
        (tmp_path / f"{name}.py").write_text(RECORDER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_mlflow_gets_settings_numbers_and_pictures(beside: Path) -> None:
    done = simulate(
        beside, "hydra/callbacks=mlflow", "hydra.callbacks.mlflow.project=mine", "figures=true"
    )
    assert done.returncode == 0, done.stderr
    (run,) = (beside / "out").glob("c2c*")
    (experiment, start, params, metrics, *pictures) = calls(beside)
    assert experiment == ["set_experiment", "mine"]
    assert start == ["start_run", run.name]
    assert isinstance(params[1], dict)
    assert params[1]["workload.requests"] == 20
    assert metrics == ["log_metrics", numbers(run)]
    assert {Path(str(path)).name for _, path in pictures} == {p.name for p in run.rglob("*.png")}
    assert pictures


@pytest.mark.slow
def test_a_sweep_logs_each_new_point_once(beside: Path) -> None:
    for seeds, logged in (("0,-1,1", 2), ("0,1,2", 3)):  # the second finds two complete
        done = simulate(beside, "-m", "hydra/callbacks=wandb", f"seed={seeds}", "figures=false")
        assert "Callback" not in done.stderr
        inits = [call for call in calls(beside) if call[0] == "init"]
        assert len(inits) == logged
    runs = {run.name: run for run in (beside / "out").glob("c2c*")}
    logs = [call for call in calls(beside) if call[0] == "log"]
    assert {str(call[2]) for call in inits} == runs.keys()
    for init, log in zip(inits, logs, strict=True):
        assert log[1] == numbers(runs[str(init[2])])


def test_a_tracker_that_is_not_installed_is_one_line(tmp_path: Path) -> None:
    done = simulate(tmp_path, "hydra/callbacks=wandb")
    assert done.returncode == 2
    assert done.stderr == (
        "error: hydra/callbacks='wandb': expected a package that is installed. "
        "Install it: pip install wandb\n"
    )
    assert not (tmp_path / "out").exists()
