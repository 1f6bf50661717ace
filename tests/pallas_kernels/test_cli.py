"""`python -m pallas_kernels` on a machine without a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pallas_kernels import cli
from pallas_kernels.repository import Repository
from tests.compiler import needs_compiler
from tests.pallas_kernels.repository.test_repository import program
from tests.tiers import tiered

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "repository"


def test_list_says_what_runs_here_and_what_is_stored(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["list", "--folder", str(folder)]) == 0
    empty = capsys.readouterr().out
    assert "executables: 0" in empty
    assert "reference  runs here" in empty
    assert "sm90       not here: " in empty
    Repository(folder).get(program("one"))
    assert cli.main(["list", "--folder", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "executables: 1\n" in out
    assert "hybrid_gemm  one" in out


def test_a_folder_others_can_write_to_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    assert cli.main(["list", "--folder", str(folder)]) == cli.WRONG
    assert "writable by nobody else" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    tiered(
        [
            ([], 0, "ops: gemm"),
            (["list", "--folder", "{}"], 0, "executables: 0"),
            (["bogus"], cli.WRONG, "invalid choice: 'bogus'"),
            (["list", "--bogus"], cli.WRONG, "unrecognized arguments: --bogus"),
            (["check", "--target", "b200"], cli.WRONG, "invalid choice: 'b200'"),
            (["check", "--part", "2/2"], cli.WRONG, "expected i/n"),
        ]
    ),
)
def test_the_command_itself(arguments: list[str], status: int, said: str, folder: Path) -> None:
    done = command(*(argument.format(folder) for argument in arguments))
    assert done.returncode == status
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@needs_compiler
def test_check_compiles() -> None:
    done = command("check", "--target", "h200_16sm", "--op", "gemm", "--part", "0/999")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "h200_16sm gemm: 64x64, cluster of 1, bfloat16 out: ok" in done.stdout


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pallas_kernels", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
