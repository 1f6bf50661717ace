"""Plug-ins that are installed: policies and settings from a package's entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

POLICY = """\
from typing import NamedTuple

from c2c.policies import wants_another


class AtQueue(NamedTuple):
    at: int = 4


@wants_another.by(AtQueue)
def at_queue(policy, outstanding, backlog_s, is_full):
    return outstanding > policy.at
"""
MECHANISM = """\
from dataclasses import make_dataclass, replace
from c2c.serving import Weights, Work
from c2c.systems.mechanism import Mechanism

def prepare(context):
    work = Work(name="all", seconds=0.3, draws={"link": Weights()})
    return replace(context.system, start=(work,))

SYSTEM = Mechanism(part="start", settings=make_dataclass("None_", []), prepare=prepare)
"""
SYSTEM = "defaults:\n  - c2cserve_letter\n  - override scale: at_queue\n  - _self_\nname: theirs\n"
SMALL = ["workload=poisson", "workload.requests=30", "workload.rate_rps=9", "figures=false"]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder as site-packages is, with a package and its metadata in it."""
    package, metadata = tmp_path / "site" / "theirs", tmp_path / "site" / "theirs-1.0.dist-info"
    (package / "conf" / "system").mkdir(parents=True)
    metadata.mkdir()
    (package / "__init__.py").write_text(POLICY)
    (package / "conf" / "system" / "theirs.yaml").write_text(SYSTEM)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[c2c.plugins]\ntheirs = theirs\n")
    return package


def run(where: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "c2c", "simulate", *overrides], cwd=where,
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(where / "site")},
    )  # fmt: skip


@pytest.mark.slow
def test_a_plug_in_brings_a_system_and_its_policy(tmp_path: Path, installed: Path) -> None:
    one = [*SMALL, "system=theirs", "system.scale.at=0"]
    done = run(tmp_path, *one)
    assert done.returncode == 0, done.stderr
    assert "complete already" in run(tmp_path, *one).stdout
    (installed / "__init__.py").write_text(POLICY.replace("> policy.at", ">= policy.at"))
    assert "(written)" in run(tmp_path, *one).stdout  # its code is part of the run's key


@pytest.mark.slow
def test_processes_of_a_sweep_have_plug_ins_and_runs_without_them_their_keys(
    tmp_path: Path, installed: Path
) -> None:
    swept = ["-m", *SMALL, "hydra/launcher=cores", "system=theirs", "system.scale.at=0,50"]
    done = run(tmp_path, *swept)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run folder (written)") == 2
    found = list(tmp_path.glob("runs/simulate/theirs_*/summary.json"))
    tails = {json.loads(p.read_text())["ttft_s"]["p99"] for p in found}
    assert len(tails) == 2  # the policy's field has its effect

    (installed / "__init__.py").write_text(POLICY.replace("> policy.at", ">= policy.at"))
    assert "(written)" in run(tmp_path, *SMALL, "folder=ours").stdout
    (installed / "__init__.py").write_text(POLICY)
    assert "complete already" in run(tmp_path, *SMALL, "folder=ours").stdout


def test_a_plug_in_that_is_broken_is_one_line(tmp_path: Path, installed: Path) -> None:
    (installed / "__init__.py").write_text("import nothing_of_the_kind\n")
    done = run(tmp_path, *SMALL)
    assert done.returncode == 2
    assert done.stderr.startswith("error: plug-in theirs (theirs): it cannot be imported (Module")
    assert done.stderr.count("\n") == 1
