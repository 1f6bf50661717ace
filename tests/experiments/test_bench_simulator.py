"""The simulator's benchmark: its points are real runs, its settings are checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from c2c.config import build, load
from experiments.lab.bench import simulator
from experiments.lab.bench.point import measure
from experiments.lab.bench.simulator import (
    BenchSettings,
    by_chips,
    by_instances,
    by_size,
    by_system,
    by_turns,
    main,
    measure_point,
)


def test_points_compose_and_keep_their_rate() -> None:
    settings = BenchSettings(requests=4000, fleets=[1, 2])
    rates = [load(o).workload for o in by_size(settings)]
    assert [w.requests for w in rates] == [40, 400, 4000]
    assert len({w.requests * w.compression for w in rates}) == 1
    setups = [build(load(o)) for o in by_instances(settings)]
    assert [len(s.prepared.kind_of) for s in setups] == [7, 14]
    assert [len(s.serving.deployments) for s in setups] == [16, 32]
    chips = [load(o).workload.rate_rps for o in by_chips(settings)]
    assert chips == [0.19, 0.38]
    systems = [build(load(o)) for o in by_system(settings)]
    assert {s.workload.description["requests"] for s in systems} == {400}
    assert all(len(s.prepared.kind_of) >= 16 for s in systems)


@pytest.mark.slow
def test_a_point_measures_a_run_that_happened() -> None:
    point = measure_point(["workload=poisson", "workload.requests=50", "workload.rate_rps=2"])
    assert point["requests"] == 50
    parts = point["generate_s"] + point["events_s"] + point["records_s"]
    assert 0 < parts <= point["simulate_s"] <= point["total_s"]
    assert 50 < point["peak_mb"] < 1000


@pytest.mark.slow
def test_the_whole_benchmark_leaves_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def here(overrides: Sequence[str]) -> dict[str, Any]:
        """The points without a process each, of which the test above starts one."""
        measured.append(str(tmp_path / f"point{len(measured)}"))
        return measure([*overrides, f"folder={measured[-1]}"])

    monkeypatch.setattr(simulator, "measure_point", here)
    out = tmp_path / "bench"
    systems = ["c2cserve_letter", "serverlessllm"]
    settings = ["requests=4000", "fleets=[1]", f"systems=[{','.join(systems)}]", f"out={out}"]
    assert main(settings) == 0
    found = json.loads((out / "simulator.json").read_text())
    assert [p["requests"] for p in found["by_requests"]] == [40, 400, 4000]
    assert found["start"]["peak_mb"] < 500
    points = sum(len(found[over]) for over in found if over != "start")
    assert pq.read_table(out / "points.parquet").num_rows == points
    # one fleet in proportion, with the same work and in cells
    assert points == 3 + len(systems) + 3 + len(by_turns(BenchSettings()))
    assert [p["system"] for p in found["by_system"]] == systems
    assert all(p["walked"] <= p["steps"] for p in found["by_requests"])
    assert found["by_turns"][0]["walked"] > 0
    assert (out / "provenance.json").exists()
    assert OmegaConf.load(out / "config.yaml").requests == 4000
