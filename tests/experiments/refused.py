"""Every command's answer to a setting that cannot work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

__all__ = ["is_refused"]


def is_refused(
    main: Callable[[Sequence[str]], int],
    given: str,
    why: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Assert that a benchmark ends with status 2 and one line, before it makes its folder."""
    where = folder / "run"
    assert main([f"out={where}", given]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
    assert not where.exists()
