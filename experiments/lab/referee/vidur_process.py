"""Vidur as a process that takes turns."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from importlib import import_module, metadata
from types import ModuleType
from typing import Any

__all__ = ["main"]

# Vidur's names are looked up: its package is missing in the environment that checks this file.
_PREDICTOR = "vidur.execution_time_predictor.sklearn_execution_time_predictor"


def _configure(job: dict[str, Any]) -> Any:
    config = import_module("vidur.config")
    return config.SimulationConfig(
        cluster_config=config.ClusterConfig(
            replica_config=config.ReplicaConfig(
                model_name="meta-llama/Llama-3-8B",
                num_pipeline_stages=1,
                tensor_parallel_size=1,
                device="a100",
                network_device="a100_dgx",
            ),
            replica_scheduler_config=config.SarathiSchedulerConfig(
                batch_size_cap=job["max_batch"], chunk_size=job["chunk"]
            ),
        ),
        request_generator_config=config.TraceRequestGeneratorConfig(
            trace_file=job["trace"],
            date=job["date"],
            prefill_scale_factor=1,
            decode_scale_factor=1,
            time_scale_factor=1,
            max_tokens=job["context"],
        ),
        execution_time_predictor_config=config.RandomForrestExecutionTimePredictorConfig(
            kv_cache_prediction_granularity=job["granularity"],
            attention_decode_batching_overhead_fraction=0.0,  # it is in the costs
            prediction_max_prefill_chunk_size=job["chunk"],
            prediction_max_batch_size=job["max_batch"],
            prediction_max_tokens_per_request=job["context"],
            use_native_execution_time_predictor=True,  # quicker than the Python one
            cache_dir=f"{job['folder']}/cache",
        ),
        metrics_config=config.MetricsConfig(
            write_metrics=False,
            enable_chrome_trace=False,
            store_plots=False,
            output_dir=f"{job['folder']}/output",
        ),
    )


def _keep_it_here(folder: str) -> None:
    wandb = ModuleType("wandb")  # imported for uploads, which are off
    wandb.run = None  # type: ignore[attr-defined]
    sys.modules["wandb"] = wandb

    def local(*, repo_id: str, cache_dir: str, **_: str) -> str:
        for kind in ("compute", "network"):
            if cache_dir.endswith(f"hf_predictions/{kind}/"):
                return f"{folder}/{kind}"
        raise RuntimeError(f"Vidur rejects the local predictions and downloads {repo_id}")

    import_module(_PREDICTOR).snapshot_download = local  # type: ignore[attr-defined]
    logging.disable(logging.ERROR)  # it logs to standard output


def main(argument: str) -> None:
    """Simulate the requests once a line of standard input."""
    inputs = json.loads(argument)
    answers = os.fdopen(os.dup(1), "w")  # separate from Vidur's own prints
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _keep_it_here(inputs["folder"])
    simulator_class = import_module("vidur.simulator").Simulator
    replica_class = import_module("vidur.entities").Replica

    def measure() -> dict[str, Any]:
        # ids count on over all simulators of a process, but its scheduler expects them from 0
        replica_class._id = -1  # noqa: SLF001
        start = time.perf_counter()
        simulator = simulator_class(_configure(inputs))
        # Vidur keeps no list of its requests; each is in the event of its arrival.
        requests = [event._request for _, event in simulator._event_queue]  # noqa: SLF001
        begun, begun_cpu = time.perf_counter(), time.process_time()
        simulator.run()
        cpu_s = time.process_time() - begun_cpu
        run_s = time.perf_counter() - begun
        requests.sort(key=lambda request: request.id)
        return {
            "run_s": run_s,
            "cpu_s": cpu_s,
            "setup_s": begun - start,
            "failed": sum(not request.completed for request in requests),
            "restarts": sum(request.num_restarts for request in requests),
            "first_s": [float(r.prefill_completed_at - r.arrived_at) for r in requests],
            "rest_s": [float(r.completed_at - r.prefill_completed_at) for r in requests],
            "version": f"vidur {metadata.version('vidur')}",
        }

    for _ in sys.stdin:
        print(json.dumps(measure()), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
