"""Metrics of `/metrics`, by model and by worker."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

__all__ = ["Metrics"]

_TTFT_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_TPOT_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_ENGINE: Final = {
    "steps": "steps of all workers",
    "compiled_after_start": "executables compiled after the start",
}
_OF_MODEL: Final = {
    "steps": "steps on all workers",
    "device_s": "seconds of device time",
    "prompt_tokens": "prompt tokens computed",
    "decode_tokens": "decoded tokens, one a row of a step",
    "padded_tokens": "padding tokens computed",
    "again_tokens": "prompt tokens recomputed after a lost worker",
    "found_tokens": "prompt tokens found in the prefix cache",
    "turns": "steps after a step of another model",
    "loads": "loads onto a worker",
    "load_s": "seconds of loads, including reads from disk",
}
_COUNTED_OF_WORKER: Final = {"restarts": "restarts so far", "generation": "processes so far"}
_OF_WORKER: Final = {
    "held": ("requests", "requests that hold a KV cache"),
    "kv_bytes": ("kv_bytes", "bytes of KV cache that requests have reserved"),
    "kv_capacity_bytes": ("kv_capacity_bytes", "bytes of KV cache that requests may reserve"),
}
_UP = ("idle", "busy", "loading")


class _Engine(Collector):
    def __init__(self) -> None:
        self.live: dict[str, Any] | None = None

    def describe(self) -> Iterator[Metric]:
        yield from ()

    def collect(self) -> Iterator[Metric]:
        live = self.live
        if live is None:
            return
        for name, text in _ENGINE.items():
            yield CounterMetricFamily(f"c2c_{name}", text, value=live[name])
        yield GaugeMetricFamily("c2c_uptime_s", "scheduler uptime", value=live["uptime_s"])
        others = math.nan if live["others_cpu"] is None else live["others_cpu"]
        text = "share of CPU time used by other processes, over ten seconds"
        yield GaugeMetricFamily("c2c_others_cpu", text, value=others)
        for name, text in (
            ("open", "open requests"),
            ("waiting", "requests before their first step"),
        ):
            yield _gauge(f"c2c_{name}_requests", text, "model", live[name])
        queue = HistogramMetricFamily(
            "c2c_queue_seconds", "wait of a request for its first step", labels=["model"]
        )
        for model, (buckets, total_s) in live["queued"].items():
            pairs = [("+Inf" if bound is None else str(bound), count) for bound, count in buckets]
            queue.add_metric([model], pairs, total_s)
        yield queue
        for name, text in _OF_MODEL.items():
            family = CounterMetricFamily(f"c2c_model_{name}", text, labels=["model"])
            for model, totals in live["models"].items():
                family.add_metric([model], totals[name])
            yield family
        workers = {str(worker["device"]): worker for worker in live["workers"]}
        up = {device: worker["state"] in _UP for device, worker in workers.items()}
        yield _gauge("c2c_worker_up", "1 if the worker serves", "device", up)
        residents = {device: len(worker["residents"]) for device, worker in workers.items()}
        yield _gauge("c2c_worker_residents", "models on the worker", "device", residents)
        for key, (name, text) in _OF_WORKER.items():
            values = {device: worker[key] for device, worker in workers.items()}
            yield _gauge(f"c2c_worker_{name}", text, "device", values)
        for key, text in _COUNTED_OF_WORKER.items():
            family = CounterMetricFamily(f"c2c_worker_{key}", text, labels=["device"])
            for device, worker in workers.items():
                family.add_metric([device], worker[key])
            yield family


def _gauge(name: str, text: str, label: str, values: dict[str, Any]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for labelled, value in values.items():
        family.add_metric([labelled], value)
    return family


class Metrics:
    """Metrics of the front and of the scheduler."""

    def __init__(self) -> None:
        """Create metrics at zero."""
        self._registry = CollectorRegistry()
        registry: dict[str, Any] = {"registry": self._registry}
        self.requests = Counter(
            "c2c_requests", "requests by outcome", ["model", "outcome"], **registry
        )
        self.prompt = Counter(
            "c2c_prompt_tokens", "prompt tokens of requests", ["model"], **registry
        )
        self.tokens = Counter("c2c_new_tokens", "delivered tokens", ["model"], **registry)
        self.ttft = Histogram(
            "c2c_ttft_seconds", "time to first token", ["model"], buckets=_TTFT_S, **registry
        )
        self.tpot = Histogram(
            "c2c_tpot_seconds", "time per output token", ["model"], buckets=_TPOT_S, **registry
        )
        self._engine = _Engine()
        self._registry.register(self._engine)

    def seen(self, live: dict[str, Any]) -> None:
        """Store the scheduler's current state."""
        self._engine.live = live

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return bytes(generate_latest(self._registry))
