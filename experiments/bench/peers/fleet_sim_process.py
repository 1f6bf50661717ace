"""vllm-sr-sim as a process that takes turns, run by the Python of its own environment.

    .venv-peer-simulator/bin/python experiments/bench/peers/fleet_sim_process.py <JSON>

This fleet simulator works on whole requests, not on steps. When a request enters a slot, its times
follow from the number of requests there at that moment. It leaves the slot after its time in a full
batch divided by the number of slots.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

__all__ = ["main"]

_BLOCK = 16  # tokens of a block of the cache
_COSTS = "fleet_sim.npz"  # experiments.bench.peers.fleet_sim_costs, which this Python cannot import


class _Costs:
    """GPU profile with the simulator's interface, backed by the tables of `write_costs`."""

    name = "this project's cost model"
    cost_per_hr = 0.0
    blk_size = _BLOCK

    def __init__(self, given: dict[str, Any]) -> None:
        tables = import_module("numpy").load(Path(given["folder"]) / _COSTS)
        # plain lists: reading one element of an array takes longer
        self._decode, self._attention, self._prefill = (
            tables[name].tolist() for name in ("decode", "attention", "prefill")
        )
        self._granularity: int = given["granularity"]
        self.chunk = given["chunk"]
        self._slots: int = given["max_batch"]
        self.total_kv_blks = self._slots * -(-given["context"] // _BLOCK)  # never binds, as in ours

    def _at(self, tokens: float) -> int:
        return min(round(tokens / self._granularity), len(self._prefill) - 1)

    def iter_latency(self, n_active: int, mean_seq_len: float) -> float:
        """Return the seconds of a step of decodes."""
        return float(self._decode[n_active][self._at(mean_seq_len)])

    def prefill_iter_latency(
        self, chunk_tokens: int, kv_history_tokens: float, n_active: int, mean_seq_len: float
    ) -> float:
        """Return the seconds of a step of one chunk and the other requests' decodes."""
        if chunk_tokens != self.chunk:
            raise ValueError(f"chunk_tokens={chunk_tokens}: expected {self.chunk}")
        beside = self._attention[n_active - 1][self._at(mean_seq_len)]
        return float(self._prefill[self._at(kv_history_tokens)] + beside)

    def n_slots(self, max_ctx: int) -> int:  # noqa: ARG002 - ours does not depend on it
        """Return the most requests of a step."""
        return self._slots


def _requests(path: str, request: Any) -> list[tuple[float, Any]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        (float(row["Time"]), request(
            req_id=i, arrival_time=float(row["Time"]), l_in=int(row["PromptTokenCount"]),
            l_out=int(row["CompletionTokenCount"]),
        ))
        for i, row in enumerate(rows)
    ]  # fmt: skip


def main(argument: str) -> None:
    """Simulate the requests once for each line on standard input."""
    given = json.loads(argument)
    answers = os.fdopen(os.dup(1), "w")  # separate from the simulator's own prints
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sim = import_module("fleet_sim")
    profile = _Costs(given)

    def measure() -> dict[str, Any]:
        start = time.perf_counter()
        arrivals = _requests(given["trace"], sim.Request)
        pool = sim.PoolConfig(
            pool_id="one", gpu=profile, n_gpus=1, max_ctx=given["context"], chunk_mode="shared"
        )
        fleet = sim.Fleet(sim.FleetConfig(pools=[pool], router_type="RandomRouter"))
        begun, begun_cpu = time.perf_counter(), time.process_time()
        fleet.run(arrivals)
        cpu_s = time.process_time() - begun_cpu
        run_s = time.perf_counter() - begun
        requests = [request for _, request in arrivals]
        served = [r for r in requests if r.physical_end_time is not None]
        return {
            "run_s": run_s,
            "cpu_s": cpu_s,
            "setup_s": begun - start,
            "failed": len(requests) - len(served),
            "first_s": [r.first_token_time - r.arrival_time for r in served],
            "rest_s": [r.physical_end_time - r.first_token_time for r in served],
            "version": f"vllm-sr-sim {metadata.version('vllm-sr-sim')}",
        }

    for _ in sys.stdin:
        print(json.dumps(measure()), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
