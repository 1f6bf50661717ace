"""This simulator as a process that takes turns: `python -m experiments.bench.peers.ours <JSON>`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from c2c.serving import FAIL_NONE, prepare
from c2c.simulator import simulate_in_memory
from experiments.bench.peers.case import read_trace, serving

__all__ = ["main"]

LEAST_S = 0.5  # a run takes hundredths of a second: repeat it and report the mean


def main(argument: str) -> None:
    """Simulate the requests once for each line on standard input."""
    given = json.loads(argument)
    started = time.perf_counter()
    prepared = prepare(serving(given["chunk"], given["max_batch"]))
    workload = read_trace(Path(given["trace"]))
    setup_s = time.perf_counter() - started

    def measure() -> dict[str, Any]:
        runs, cpu_s, run_s = 0, 0.0, 0.0
        while cpu_s < LEAST_S:
            start, start_cpu = time.perf_counter(), time.process_time()
            records = simulate_in_memory(prepared, workload).records
            cpu_s += time.process_time() - start_cpu
            run_s += time.perf_counter() - start
            runs += 1
        return {
            "run_s": run_s / runs,
            "cpu_s": cpu_s / runs,
            "setup_s": setup_s,
            "failed": int((records.failure != FAIL_NONE).sum()),
            "first_s": (records.first_token_s - records.arrival_s).tolist(),
            "rest_s": (records.finished_s - records.first_token_s).tolist(),
        }

    for _ in sys.stdin:
        print(json.dumps(measure()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
