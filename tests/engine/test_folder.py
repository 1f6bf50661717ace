"""Files of a killed engine are removed by the next, those of one that lives are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from c2c.engine.folder import OwnFolder


def test_folders_of_engines_that_are_gone_are_removed(tmp_path: Path) -> None:
    lives = OwnFolder(tmp_path)
    (lives.path / "weights").mkdir()
    left = subprocess.run(
        [sys.executable, "-c",
         "import os, sys, pathlib; from c2c.engine.folder import OwnFolder;"
         "print(OwnFolder(pathlib.Path(sys.argv[1])).path, flush=True); os._exit(9)",
         str(tmp_path)], capture_output=True, text=True, check=False,
    )  # fmt: skip
    killed = Path(left.stdout.strip())
    assert killed.is_dir()
    assert killed.parent == tmp_path
    strange = tmp_path / "c2c-engine-strange"
    strange.mkdir()
    again = OwnFolder(tmp_path)
    assert not killed.exists()
    assert (lives.path / "weights").is_dir()
    assert strange.is_dir()
    again.remove()
    assert not again.path.exists()
    lives.remove()
