"""The metrics of /metrics, by model."""

from __future__ import annotations

import math
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["Metrics"]

_TTFT_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_TPOT_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


class Metrics:
    """Counters of the front, and gauges of what the scheduler says."""

    def __init__(self) -> None:
        """Begin at nothing."""
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
        self._open = Gauge("c2c_open_requests", "not over", ["model"], **of)
        self._engine = {
            name: Gauge(f"c2c_{name}", text, **of)
            for name, text in {
                "steps": "of all workers",
                "compiled_after_start": "executables that were not ready",
                "uptime_s": "of the scheduler",
                "others_cpu": "share of the cores that others had in the last ten seconds",
            }.items()
        }
        self._of_model = {
            name: Gauge(f"c2c_model_{name}", text, ["model"], **of)
            for name, text in {
                "steps": "of all workers",
                "device_s": "seconds of devices",
                "prompt_tokens": "computed",
                "decode_tokens": "rows of steps, one token each",
                "padded_tokens": "computed for nothing, to fill shapes",
                "again_tokens": "computed again, after a loss",
                "turns": "steps after another model's",
                "loads": "onto a worker",
                "load_s": "seconds of them, reading weights from disk included",
            }.items()
        }
        of_worker = {"labelnames": ["device"], **of}
        self._up = Gauge("c2c_worker_up", "whether it serves", **of_worker)
        self._restarts = Gauge("c2c_worker_restarts", "since the start", **of_worker)
        self._held = Gauge("c2c_worker_requests", "that hold keys and values", **of_worker)
        self._residents = Gauge("c2c_worker_residents", "models on it", **of_worker)
        self._generation = Gauge("c2c_worker_generation", "processes so far", **of_worker)

    def seen(self, live: dict[str, Any]) -> None:
        """Take how things are."""
        self._open.clear()  # a model without any is not named
        for model, count in live["open"].items():
            self._open.labels(model).set(count)
        for name, gauge in self._engine.items():
            gauge.set(math.nan if live[name] is None else live[name])
        for model, totals in live["models"].items():
            for name, gauge in self._of_model.items():
                gauge.labels(model).set(totals[name])
        for worker in live["workers"]:
            device = str(worker["device"])
            self._up.labels(device).set(worker["state"] in ("idle", "busy", "loading"))
            self._restarts.labels(device).set(worker["restarts"])
            self._held.labels(device).set(worker["held"])
            self._residents.labels(device).set(len(worker["residents"]))
            self._generation.labels(device).set(worker["generation"])

    def text(self) -> bytes:
        """Return all of it in Prometheus' form."""
        return bytes(generate_latest(self._registry))
