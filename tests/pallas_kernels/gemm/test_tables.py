"""The README's tables are those of the model as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_the_readme_has_todays_predictions(repository: Path, tmp_path: Path) -> None:
    # in a process of its own, where nothing checks types: a tenth of the time
    done = subprocess.run(
        [sys.executable, "-m", "tests.pallas_kernels.gemm.tables"],
        cwd=repository,
        env=os.environ | {"PALLAS_KERNELS_TUNED": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    predicted, lines = done.stdout.split("\n\n")  # lines of code stand there with their date
    assert len(predicted.splitlines()) == 24
    text = (repository / "pallas_kernels/README.md").read_text("utf-8")
    for line in predicted.splitlines():
        assert line in text
    assert lines.count("\n") == 11
