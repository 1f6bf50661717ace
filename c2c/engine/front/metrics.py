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
    "steps": "of all workers",
    "compiled_after_start": "executables that were not ready",
}
_OF_MODEL: Final = {
    "steps": "of all workers",
    "device_s": "seconds of devices",
    "prompt_tokens": "computed",
    "decode_tokens": "rows of steps, one token each",
    "padded_tokens": "computed for nothing, to fill shapes",
    "again_tokens": "computed again, after a loss",
    "found_tokens": "of prompts, not computed, as a worker had their blocks",
    "turns": "steps after another model's",
    "loads": "onto a worker",
    "load_s": "seconds of them, reading weights from disk included",
}
_COUNTED_OF_WORKER: Final = {"restarts": "since the start", "generation": "processes so far"}
_OF_WORKER: Final = {
    "held": ("requests", "that hold keys and values"),
    "kv_bytes": ("kv_bytes", "of keys and values that requests have reserved"),
    "kv_capacity_bytes": ("kv_capacity_bytes", "that they may reserve together"),
}
_UP = ("idle", "busy", "loading")


class _Engine(Collector):
    """Collector of the scheduler's metrics."""

    def __init__(self) -> None:
        self.live: dict[str, Any] | None = None

    def describe(self) -> Iterator[Metric]:
        """Yield nothing, as metrics are known only after the scheduler's first state."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families of the last state."""
        live = self.live
        if live is None:
            return
        for name, text in _ENGINE.items():
            yield CounterMetricFamily(f"c2c_{name}", text, value=live[name])
        yield GaugeMetricFamily("c2c_uptime_s", "of the scheduler", value=live["uptime_s"])
        others = math.nan if live["others_cpu"] is None else live["others_cpu"]
        text = "share of the cores that others had in the last ten seconds"
        yield GaugeMetricFamily("c2c_others_cpu", text, value=others)
        for name, text in (("open", "not over"), ("waiting", "that wait for their first step")):
            yield _gauge(f"c2c_{name}_requests", text, "model", live[name])
        queue = HistogramMetricFamily(
            "c2c_queue_seconds", "of a request to its first step", labels=["model"]
        )
        for model, (buckets, total_s) in live["queued"].items():
            pairs = [("+Inf" if at is None else str(at), count) for at, count in buckets]
            queue.add_metric([model], pairs, total_s)
        yield queue
        for name, text in _OF_MODEL.items():
            family = CounterMetricFamily(f"c2c_model_{name}", text, labels=["model"])
            for model, totals in live["models"].items():
                family.add_metric([model], totals[name])
            yield family
        workers = {str(worker["device"]): worker for worker in live["workers"]}
        up = {device: worker["state"] in _UP for device, worker in workers.items()}
        yield _gauge("c2c_worker_up", "whether it serves", "device", up)
        residents = {device: len(worker["residents"]) for device, worker in workers.items()}
        yield _gauge("c2c_worker_residents", "models on it", "device", residents)
        for key, (name, text) in _OF_WORKER.items():
            known = {device: worker[key] for device, worker in workers.items()}
            yield _gauge(f"c2c_worker_{name}", text, "device", known)
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
        of: dict[str, Any] = {"registry": self._registry}
        self.requests = Counter("c2c_requests", "by outcome", ["model", "outcome"], **of)
        self.prompt = Counter("c2c_prompt_tokens", "of requests", ["model"], **of)
        self.tokens = Counter("c2c_new_tokens", "delivered", ["model"], **of)
        self.ttft = Histogram(
            "c2c_ttft_seconds", "to the first token", ["model"], buckets=_TTFT_S, **of
        )
        self.tpot = Histogram(
            "c2c_tpot_seconds", "a token after the first", ["model"], buckets=_TPOT_S, **of
        )
        self._engine = _Engine()
        self._registry.register(self._engine)

    def seen(self, live: dict[str, Any]) -> None:
        """Store the scheduler's current state."""
        self._engine.live = live

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return bytes(generate_latest(self._registry))
