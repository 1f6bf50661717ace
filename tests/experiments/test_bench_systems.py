"""The table of all systems' speeds: every file is a line, and a run that is there is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from c2c.config import build, config_dir, load
from experiments.lab.bench.systems import default_settings, main, systems


def test_every_file_is_a_system_with_settings_that_work() -> None:
    """Two that need more than the defaults; the contract suite builds all of them."""
    assert systems() == sorted(p.stem for p in (config_dir() / "system").glob("*.yaml"))
    assert default_settings("c2cserve") == ["system=c2cserve", "workload=poisson"]
    for system in ("finemoe", "dedicated"):
        build(load([*default_settings(system), "workload.requests=10"]))


def test_a_measurement_that_was_stopped_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["requests=50", f"runs={tmp_path / 'runs'}"]
    assert main(["systems=[c2cserve]", *common, f"out={tmp_path / 'first'}"]) == 0
    one = json.loads((tmp_path / "runs" / "c2cserve" / "speed.json").read_text())
    both = ["systems=[c2cserve,serverlessllm]", *common]
    assert main([*both, f"out={tmp_path / 'second'}"]) == 0
    rows = pq.read_table(tmp_path / "second" / "systems.parquet").to_pylist()
    assert [(r["system"], r["kept"]) for r in rows] == [
        ("c2cserve", True),
        ("serverlessllm", False),
    ]
    assert rows[0]["requests_per_s"] == 50 / one["simulate_s"]
    assert all(r["finished"] == r["requests"] == 50 for r in rows)
    said = capsys.readouterr().out
    assert "requests/s of each system" in said
    assert "c2cserve (kept)" in said
    assert main(["systems=[c2cserve]", *common, "again=true", f"out={tmp_path / 'third'}"]) == 0
    again = json.loads((tmp_path / "third" / "systems.json").read_text())["rows"]
    assert [r["kept"] for r in again] == [False]
