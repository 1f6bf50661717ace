"""Numbers of requests that a static server drains, with and without copies of layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

from c2c.config import build, load
from c2c.hardware import load_node
from c2c.models import load_spec
from c2c.serving import Prepared, prepare
from c2c.simulator import simulate_in_memory
from c2c.systems.cocoserve import Scaling, headroom, placement_of, static_host_s
from c2c.workloads import WorkloadConfig, build_workload, workload_config

__all__ = ["DEFAULTS", "LOW", "PEAK", "Drained", "Served", "drained", "mean_over"]

_CHUNK: Final = 16_384  # a static server computes the prompts of a batch together
_MOST_ROWS: Final = 256
MODEL: Final = "llama-2-13b"
NODE: Final = "a100_40_pcie_x4"
PEAK: Final = 50
ANSWER_TOKENS: Final = 256  # of every request: the only length that is printed
LOW: Final = (3, 30)  # requests a second, the low loads of section 6.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What serves, and by which reading of what the paper leaves open (`readings.yaml`).

    Attributes:
      layers: that have copies.
      copies: of each of them, its original included.
      migrated: layers that are away.
      load, prompt_tokens, batch, grown_batch, host_seconds, replica_devices: readings.
    """

    layers: int = 0
    copies: int = 2
    migrated: int = 0
    load: str = "at_once"
    prompt_tokens: int = 85
    batch: int | str = 15
    grown_batch: str = "even"
    host_seconds: str = "baseline"
    replica_devices: str = "one"


DEFAULTS: Final = Served()


@dataclass(frozen=True, slots=True)
class Drained:
    """What a rate gives: requests a second and the mean latency."""

    throughput_rps: float
    latency_s: float


@cache
def drained(served: Served, rate: int, seed: int = 0) -> Drained:
    """Serve the requests that a rate is read as, by the model over four cards.

    Args:
      served: what serves.
      rate: r, requests a second as the paper says.
      seed: of arrivals and lengths.
    """
    workload = build_workload(_workload(served, rate), [MODEL], seed, [MODEL])
    found = simulate_in_memory(_prepared(served), workload, compiled=False).records
    arrived, ended = found["arrival_s"], found["finished_s"]
    return Drained(
        throughput_rps=len(found) / float(ended.max() - arrived.min()),
        latency_s=float((ended - arrived).mean()),
    )


def mean_over(served: Served, ends: tuple[int, int], average: str = "five") -> Drained:
    """Return the mean over rates of a range, both ends of it among them."""
    low, high = ends
    rates = {
        "five": np.linspace(low, high, 5), "ends": np.array([low, high]),
        "middle": np.array([(low + high) / 2]),
    }[average]  # fmt: skip
    each = [drained(served, round(float(rate))) for rate in rates]
    return Drained(
        float(np.mean([one.throughput_rps for one in each])),
        float(np.mean([one.latency_s for one in each])),
    )


def _system(served: Served) -> list[str]:
    host_s = static_host_s()
    if served.layers or served.migrated:
        host_s *= {"baseline": 1.0, "half": 0.5, "none": 0.0}[served.host_seconds]
    over = {"one": 1, "memory": 2, "three": 3}[served.replica_devices] if served.copies == 2 else 1
    return [
        "system=cocoserve", f"node={NODE}", "system/admit=whole_batches", "system/vary=as_alpha",
        "system.alpha.initial=1", f"system.layout.replicated={served.layers}",
        f"system.layout.copies={served.copies}", f"system.layout.over={over}",
        f"system.layout.migrated={served.migrated}", f"system.layout.host_s={host_s}",
        f"system.layout.kv={'copies' if served.grown_batch == 'replicas_all' else 'every'}",
        f"system.max_batch={_rows(served)}", f"system.chunk.tokens={_CHUNK}",
    ]  # fmt: skip


def _rows(served: Served) -> int:
    """Return the rows of a batch: of the unscaled server, times what its copies relieve it of."""
    if served.batch == "memory":
        return _MOST_ROWS
    if not served.layers or served.grown_batch == "fixed":
        return int(served.batch)
    spec = load_spec(MODEL)
    asked = Scaling(replicated=served.layers, copies=served.copies)
    held = placement_of(asked, spec, load_node(NODE), 0).copies
    away = 1.0 if served.grown_batch == "replicas_all" else 1.0 - 1.0 / served.copies
    layers = sum(len(devices) > 1 for devices in held)
    return int(int(served.batch) * headroom(layers, away, of=spec.layers))


def _workload(served: Served, rate: int) -> WorkloadConfig:
    at_once, many = {"requests": rate, "concurrency": rate}, 10 * rate
    arrivals: dict[str, dict[str, Any]] = {
        "at_once": {"kind": "closed_loop", **at_once},
        "closed_loop": {"kind": "closed_loop", **at_once, "requests": many},
        "ten_seconds": {"kind": "poisson", "requests": many, "rate_rps": rate},
    }
    lengths = {
        "lengths": "fixed", "prompt_tokens": served.prompt_tokens, "output_tokens": ANSWER_TOKENS,
    }  # fmt: skip
    return workload_config({"name": served.load, **arrivals[served.load], **lengths})


# The system does not depend on the load: composing its settings takes longer than serving.
@lru_cache(maxsize=64)
def _prepared_by(settings: tuple[str, ...]) -> Prepared:
    return prepare(build(load(list(settings))).serving)


def _prepared(served: Served) -> Prepared:
    return _prepared_by(tuple(_system(served)))
