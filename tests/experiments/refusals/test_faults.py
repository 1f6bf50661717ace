"""Signals, terminals, disks and limits: one line, and nothing half made."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from c2c.config import build, load
from c2c.errors import DataError
from experiments.simulation import single_run

COMMAND = [sys.executable, "-m", "c2c", "simulate"]
SMALL = ["workload=poisson", "workload.requests=60", "workload.rate_rps=2", "figures=false"]


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "module", ["numpy", "hydra", "pyarrow", "experiments.simulation.single_run"]
)
def test_ctrl_c_during_imports_is_one_line(tmp_path: Path, module: str) -> None:
    code = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == sys.argv[1]: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from experiments.simulate import main\n"
        "sys.exit(main([]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, module], cwd=tmp_path, capture_output=True, text=True
    )
    assert one_line(done).startswith("interrupted; run the same command again")
    assert (done.returncode, done.stdout) == (130, "")
    assert not list(tmp_path.iterdir())


def test_a_terminal_without_the_characters_of_a_name_shows_their_codes(tmp_path: Path) -> None:
    named = "catalog.models=[{spec: llama-3-8b, name: 'mod\u00e8le-\u65e5\u672c'}]"
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [*COMMAND, *SMALL, named, "workload.name='\u00fcber'", "folder=here"],
        cwd=tmp_path, capture_output=True, text=True, env=ascii_only,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "mod\\xe8le-\\u65e5\\u672c" in done.stdout
    assert (tmp_path / "here" / "DONE").exists()
    refused = subprocess.run(
        [*COMMAND, *SMALL, "mig='\u00fc'"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=ascii_only,
    )
    assert one_line(refused).startswith("error: mig='\\xfc': expected")


def test_text_that_is_no_utf_8_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, *SMALL, b"workload.name=\xff"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "expected" in one_line(done)
    assert not list(tmp_path.iterdir())


def test_memory_that_ends_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                      capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    from experiments import simulate

    def taken(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 12.7 GiB")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["c2c.config.build"], "prepare", taken)
    assert simulate.main(SMALL) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: memory: not enough (Unable to allocate 12.7 GiB)")
    assert said.count("\n") == 1


def test_a_disk_that_is_too_small_is_one_line_before_work(tmp_path: Path) -> None:
    mounted = 'mkdir small && mount -t tmpfs -o size=200k none small && exec "$@" folder=small/r'
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounted, "sh"]
    probe = subprocess.run([*inside[:-2], "mount -t tmpfs none /mnt"], capture_output=True)
    if probe.returncode:
        pytest.skip("mounting is not allowed here")
    done = subprocess.run([*inside, *COMMAND, *SMALL], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "room for about" in one_line(done)


def test_a_limit_of_file_size_is_one_line_before_work(tmp_path: Path) -> None:
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
        "from experiments.cli import main\n"
        "sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, "simulate", *SMALL, "folder=here"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "limit of a file" in done.stderr
    assert not (tmp_path / "here").exists()


def test_a_disk_that_fills_up_meanwhile_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("c2c.runs.tables.pq.ParquetWriter.write_table", full)
    setup = build(load([*SMALL, f"folder={tmp_path / 'here'}"]))
    with pytest.raises(DataError, match=r"here: cannot be written any further \(No space left"):
        single_run.show(setup, single_run.console(), "none")
    assert not list((tmp_path / "here").glob("*.parquet"))
    assert not list((tmp_path / "here").glob(".*.partial"))
    assert not (tmp_path / "here" / "DONE").exists()
