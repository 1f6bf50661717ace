"""What makes a recorded check stale, and what does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pallas_kernels import cli
from pallas_kernels.ahead_of_time import record
from pallas_kernels.ops import OPS


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's sources, to be changed."""
    there = tmp_path / "pallas_kernels"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(record.__file__).parents[1], there, ignore=ignored)
    monkeypatch.setattr(record, "_PACKAGE", there)
    return there


def changed(there: Path, file: str, before: str, after: str) -> set[str]:
    """Change a file; return the ops whose fingerprint did."""
    old = {op: record.fingerprint(op) for op in OPS}
    text = (there / file).read_text("utf-8")
    assert before in text
    (there / file).write_text(text.replace(before, after, 1), "utf-8")
    record._code.cache_clear()
    record._imported.cache_clear()
    return {op for op in OPS if record.fingerprint(op) != old[op]}


@pytest.mark.parametrize(
    ("file", "before", "after", "ops"),
    [
        # the missing wait, the wrong count and the swapped tile of the mutation tests
        ("mosaic.py", "plgpu.barrier_wait(barrier", "id(barrier", set(OPS)),
        ("gemm/cta.py", "turn * self.size + slot", "slot", {"gemm"}),
        (
            "gemm/rows.py",
            "sym_strip(div(item, blocks)",
            "sym_strip(rem(item, blocks)",
            {"gemm"},
        ),
        ("ahead_of_time/report.py", "spilled_bytes == 0", "spilled_bytes >= 0", set(OPS)),
        ("gemm/sm90.py", '"""The Hopper kernel:', '"""A Hopper kernel:', set()),
        ("gemm/config.py", "@dataclass", "# a comment\n@dataclass", set()),
        ("host_memory/pool.py", "import ", "import sys\nimport ", set()),
    ],
)
def test_an_op_is_stale_if_its_code_changed(
    copied: Path, file: str, before: str, after: str, ops: set[str]
) -> None:
    assert changed(copied, file, before, after) == ops


def test_another_jax_makes_all_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "recorded.json"
    assert record.unchecked(kept) == OPS
    record.write({op: record.fingerprint(op) for op in OPS[1:]}, kept)
    assert record.unchecked(kept) == OPS[:1]
    record.write({OPS[0]: record.fingerprint(OPS[0])}, kept)
    assert record.unchecked(kept) == ()
    monkeypatch.setattr(record, "jax_version", lambda: "0.0.1")
    assert record.unchecked(kept) == OPS


def test_a_part_is_not_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--part", "0/2"], ["--target", "h200"]):
        assert cli.main(["check", "--record", *options]) == cli.WRONG
        assert "--record: expected without" in capsys.readouterr().err
