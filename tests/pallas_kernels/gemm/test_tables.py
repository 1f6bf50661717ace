"""The README's predicted times are those of the model as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pallas_kernels.gemm import tables


def test_the_readme_has_todays_predictions(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("pallas_kernels.tuned_results.folders", lambda: (tmp_path,))
    text = (repository / "pallas_kernels/README.md").read_text("utf-8")
    for line in (*tables.changes(), *tables.slices()):
        assert line in text
