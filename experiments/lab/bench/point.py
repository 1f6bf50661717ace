"""One point of the simulator's benchmark, in its own process."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from c2c.config import build, load
from c2c.simulator.warm import warm
from experiments.lab.bench.memory import peak_mb
from experiments.simulation import execute

__all__ = ["main", "measure"]


def measure(overrides: Sequence[str]) -> dict[str, Any]:
    """Run a point; return its time and peak memory."""
    machine_code_s = warm()  # compiling or loading is start-up, not simulation
    started = time.perf_counter()
    setup = build(load([*overrides, "figures=false", "resume=false"]))
    prepare_s = time.perf_counter() - started
    outcome = execute(setup)
    assert outcome.speed is not None
    summary = outcome.summary
    return asdict(outcome.speed) | {
        "system": setup.serving.system.name,
        "machine_code_s": machine_code_s,
        "prepare_s": prepare_s,
        "total_s": time.perf_counter() - started,
        "peak_mb": peak_mb(),
        "instances": summary["run"]["instances"],
        "superchips": summary["run"]["chips"],
        "deployments": len(setup.serving.deployments),
        "finished": summary["finished"],
        "failed": summary["failed"],
        "arrival_rps": summary["arrival_rps"],
        "slo_attainment": summary["attainment"]["both"],
        "steps": summary["run"]["steps"],
        "walked": summary["run"]["walked"],
        "switches": summary["starts"]["switch"],
        "link_utilisation": summary["run"]["utilisation"]["link_mean"],
        "most_per_chip_gbps": summary["run"]["link_peak_gbps"],
    }


def main(overrides: Sequence[str]) -> None:
    """Run a point and print its measurements as JSON."""
    print(json.dumps(measure(overrides)))


if __name__ == "__main__":
    main(sys.argv[1:])
