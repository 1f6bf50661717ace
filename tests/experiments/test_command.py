"""A command ends with its own exit status, whatever interrupted it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

INTERRUPTED_IN_A_SOURCE_TEXT = """
import os, signal, sys
from experiments.command import command

def run():
    exec("os.kill(os.getpid(), signal.SIGTERM)", globals())
    return 0

sys.exit(command(run, []))
"""


def test_an_interrupt_inside_executed_source_text_ends_with_the_status_of_interrupts(
    tmp_path: Path,
) -> None:
    (tmp_path / "stopped.py").write_text(INTERRUPTED_IN_A_SOURCE_TEXT)
    ended = subprocess.run(
        [sys.executable, "-m", "stopped"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 130, ended
    assert "interrupted; run the same command again" in ended.stderr
