"""The command as a user meets it: without a GPU, as a dry run, with wrong arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import jax
import pyarrow.parquet as pq
import pytest

from experiments.gpu import cli
from experiments.gpu.cases import Case
from experiments.gpu.kernels import grid
from experiments.gpu.sections import CALLS, SECTIONS

ROOT = Path(__file__).parents[3]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "experiments.gpu", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )


@pytest.mark.skipif(
    any(d.platform == "gpu" for d in jax.devices()), reason="a GPU is here; this is about none"
)
def test_without_a_gpu_it_says_so_writes_nothing_and_fails(tmp_path: Path) -> None:
    done = command("--out", str(tmp_path / "results"))
    assert done.returncode == 2
    assert "sees no GPU" in done.stderr
    assert not (tmp_path / "results").exists()


def test_where_jax_leaves_its_plugin_out_it_says_why(tmp_path: Path) -> None:
    """An old driver, or a library that is not there: jax logs it and goes on without the GPU."""
    plugin, smi = tmp_path / "jax_plugins/broken/__init__.py", tmp_path / "nvidia-smi"
    plugin.parent.mkdir(parents=True)
    plugin.write_text("def initialize():\n    raise RuntimeError('CUDA wants driver 580')\n")
    smi.write_text("#!/bin/sh\necho 'NVIDIA H200, 535.1, 1 MiB, 1, 1, 1, 5, 16, Disabled'\n")
    smi.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "experiments.gpu", "--out", str(tmp_path / "results")],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env=os.environ
        | {"PYTHONPATH": str(tmp_path), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.returncode == 2
    assert "The driver, 535.1, sees NVIDIA H200: CUDA wants driver 580." in done.stderr


def test_looking_for_a_python_is_time_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "python"
    slow.write_text('#!/bin/sh\ncase "$1" in -m) echo "$C2C_GPU_BEGUN" "$@";; esac\n')
    slow.chmod(0o755)
    before = int(time.time())
    done = subprocess.run(
        [ROOT / ".ci/gpu", "smoke"],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"C2C_PYTHON": str(slow)},
        check=True,
    )
    begun, *given = done.stdout.split()
    assert given == ["-m", "experiments.gpu", "smoke"]
    assert before <= int(begun) <= time.time()
    monkeypatch.setenv("C2C_GPU_BEGUN", str(int(time.time()) - 118))
    assert 118 <= cli.spent_s() < 178
    monkeypatch.delenv("C2C_GPU_BEGUN")
    assert cli.spent_s() == 0


@pytest.mark.slow
def test_a_dry_run_of_sections_end_to_end(tmp_path: Path) -> None:
    out, archive = tmp_path / "out", tmp_path / "all.tar.gz"
    arguments = ("link", "kernels", "--dry-run", "--out", str(out), "--archive", str(archive))
    done = command(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = out / "dry-run"
    for name in ("link", "kernels"):
        table = pq.read_table(folder / name / f"{name}.parquet")
        found = table.to_pylist()
        assert {row["status"] for row in found} == {"ok"}
        assert all(row["dry_run"] for row in found)
        (facts,) = json.loads(table.schema.metadata[b"c2c"])["runs"].values()
        assert facts["command"][3:] == list(arguments)
        assert facts["versions"]["jax"] == jax.__version__
        assert {"commit", "driver", "started_at", "seed", "device"} <= set(facts)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["dry_run"]
    statuses = {f["status"] for f in summary["findings"]}
    assert statuses == {"unmeasured"}  # tiny sizes on a CPU show nothing
    assert summary["coverage"]["kernels"]["unmeasured"] == 0
    assert "dry run" in (folder / "summary.md").read_text()
    with tarfile.open(archive) as packed:
        assert "dry-run/kernels/kernels.parquet" in packed.getnames()
    again = command("kernels", "--dry-run", "--out", str(out))
    assert "kernels: 0 ok, 0 failed" in again.stdout


def test_the_list_names_every_section(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [Case(spec={"n": n}) for n in range(1234)]
    monkeypatch.setattr(grid, "cases", lambda scale: few)  # the whole grid takes a while to list
    assert cli.main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in SECTIONS)
    assert "1234 cases" in printed


def test_the_list_says_what_a_section_lacks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(scale: str) -> list[Case]:
        raise ModuleNotFoundError("No module named 'omegaconf'")

    monkeypatch.setattr(grid, "cases", lacking)
    assert cli.main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert "kernels        unavailable (No module named 'omegaconf')" in printed
    assert "rehearsal" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "expected one of first, second, third, fourth alone, or sections of smoke"),
        (["first", "kernels"], "name 'first'"),
        (["first", "--host-read", "hang"], "expected --dry-run"),
        (["--case-limit", "-1"], "--case-limit=-1.0: expected a number above 0"),
        (["--archive", "x.zip"], "expected a name that ends in .tar.gz"),
        (["--resume", "absent.tar.gz"], "expected an archive of an earlier run"),
        (["rehearsal"], "expected --dry-run"),
        (["--minutes", "0"], "expected a number above 0"),
        (["--dry-run", "--out", str(cli.RESULTS / "x")], "a dry run has no results"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in SECTIONS if name != "rehearsal"])
def test_every_section_that_measures_can_be_asked_for(name: str) -> None:
    assert cli.parse([name]).call.sections == (name,)


def test_calls_are_a_lease_and_none_runs_everything() -> None:
    assert cli.parse([]).call == CALLS["first"]
    assert cli.parse(["third"]).call.sections == CALLS["third"].sections
    assert set().union(*(call.sections for call in CALLS.values())) == {*SECTIONS} - {"rehearsal"}


@pytest.mark.parametrize("name", SECTIONS)
@pytest.mark.parametrize("scale", ["full", "quick", "tiny"])
def test_cases_are_distinct_and_scalar(name: str, scale: str) -> None:
    cases = SECTIONS[name].cases(scale)  # type: ignore[arg-type]
    assert cases
    keys = [case.key for case in cases]
    assert len(set(keys)) == len(keys)
    assert all(
        isinstance(value, str | int | float) for case in cases for value in case.spec.values()
    )
    assert all(0 < case.limit_s <= 300 for case in cases)
