"""Traces and checkpoints that were made to hurt: one line says what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from c2c.errors import DataError
from c2c.transformer import load
from tests.attacks.files import CHECKPOINTS, TRACES
from tests.attacks.table import Attack, holds
from tests.tiers import tiered

_MOST_MB = 900  # of a process that reads a trace, 150 of them before it reads
_READ = (
    "import sys; from c2c.errors import DataError, SettingError; from c2c.workloads import *\n"
    "try: found = build_workload({'kind': 'trace', 'path': sys.argv[1]}, ('x',), 0)\n"
    "except (DataError, SettingError) as error: print(error)\n"
    "else: print(sys.argv[1], 'read:', sum(map(len, found.blocks())), 'requests')\n"
    "print(next(line.split()[1] for line in open('/proc/self/status') if 'VmHWM' in line))"
)


def _read(path: Path) -> tuple[str, float]:
    """Return what reading a trace says, and the most memory that it took in MB."""
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(path)], stdout=subprocess.PIPE, text=True, check=True
    )
    *said, most_kib = done.stdout.splitlines(keepends=True)
    return "".join(said), int(most_kib) / 1024


@pytest.mark.parametrize("attack", tiered(TRACES, *TRACES[1::2]), ids=str)
def test_a_trace_is_refused_in_one_line(attack: Attack, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    attack.make(path)
    said, most_mb = _read(path)
    assert said.count("\n") == 1
    text = said.strip().partition(f"{path}")[2].lstrip("':. ").removesuffix(".")
    assert holds(text, attack.back), said
    assert most_mb < _MOST_MB
    assert [file.name for file in tmp_path.iterdir()] == ["trace"]


@pytest.mark.parametrize("attack", CHECKPOINTS, ids=str)
def test_a_checkpoint_is_refused_in_one_line(attack: Attack, tmp_path: Path) -> None:
    folder = tmp_path / "attacked"
    attack.make(folder)
    with pytest.raises(DataError) as error:
        load(folder, executables=None)
    said = str(error.value)
    assert "\n" not in said
    assert len(said) < 2000
    assert holds(said.removeprefix(f"{folder}").lstrip("/: "), attack.back), said
