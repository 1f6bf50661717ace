"""Latency and throughput with static or continuous batches and copied layers."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Annotated, Any, Final

import numpy as np

from c2c.config import build
from c2c.hardware import load_node
from c2c.models import load_spec
from c2c.ranges import Count, FromZero, Index, OneOf, check_fields
from c2c.serving import Prepared, prepare
from c2c.simulator import simulate_in_memory
from c2c.systems.cocoserve import (
    Scaling,
    even_rows,
    headroom,
    kv_bytes,
    layer_bytes,
    operation_costs,
    placement_of,
    static_host_s,
)
from c2c.workloads import WorkloadConfig, build_workload, workload_config
from experiments.papers.c2cserve.settings import composed

__all__ = [
    "ANSWER_TOKENS",
    "CARD_BYTES",
    "DEFAULTS",
    "HIGH",
    "LOW",
    "MODEL",
    "NODE",
    "PAGED",
    "PEAK",
    "Drained",
    "Served",
    "batch_of",
    "drained",
    "first_bytes",
    "mean_over",
    "rows_that_fit",
]

_CHUNK: Final = 16_384  # a static server computes the prompts of a batch together
_MOST_ROWS: Final = 256
PAGED: Final = 0.9  # share of a card's memory for an engine with a paged KV cache
MODEL: Final = "llama-2-13b"
NODE: Final = "a100_40_pcie_x4"
CARD_BYTES: Final = 42_298_834_944
PEAK: Final = 50
ANSWER_TOKENS: Final = 256  # tokens of every answer: the only length that the paper prints
LOW: Final = (3, 30)  # requests a second, the low loads of section 6.1
HIGH: Final = (31, 50)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server under one reading of the paper's open settings (`readings.yaml`).

    Attributes:
      model: name of the model.
      split: cards with equal runs of layers.
      engine: `static` batches, `continuous` ones with a paged KV cache, or those with the
        `library`'s host seconds.
      instances: independent ones, with equal requests.
      copies: instances of each copied layer.
      load, prompt_tokens, batch, grown_batch, host_seconds, replica_devices, restart_seconds,
        hbm_bytes: see `readings.yaml`.
    """

    model: str = MODEL
    split: Count = 1
    engine: Annotated[str, OneOf("static", "continuous", "library")] = "static"
    instances: Count = 1
    layers: Index = 0
    copies: Count = 2
    migrated: Index = 0
    load: Annotated[str, OneOf("at_once", "ten_seconds", "closed_loop")] = "at_once"
    prompt_tokens: Count = 85
    batch: Count | Annotated[str, OneOf("memory")] = 15
    grown_batch: Annotated[str, OneOf("even", "fixed", "replicas_all")] = "even"
    host_seconds: Annotated[str, OneOf("baseline", "half", "none")] = "baseline"
    replica_devices: Annotated[str, OneOf("one", "memory", "three")] = "one"
    restart_seconds: FromZero = 25.0
    hbm_bytes: Count = CARD_BYTES

    def __post_init__(self) -> None:
        check_fields(self, "experiment.server")


DEFAULTS: Final = Served()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """Results at one rate.

    Attributes:
      throughput_rps: requests over the makespan.
      latencies_s: of each request; (): a mean over rates.
      failed: requests of such batches, served again.
      failed_batches: batches that outgrew memory.
    """

    throughput_rps: float
    latency_s: float
    latencies_s: tuple[float, ...] = ()
    failed: int = 0
    failed_batches: int = 0
    batches: int = 0

    @property
    def makespan_s(self) -> float:
        """Seconds until the last request ends."""
        return len(self.latencies_s) / self.throughput_rps


@cache
def drained(served: Served, rate: int, seed: int = 0) -> Drained:
    """Serve a rate's requests on the node's four cards."""
    alone = replace(served, instances=1)
    runs = [_alone(alone, n, seed) for n in even_rows(rate, served.instances) if n]
    if len(runs) == 1:
        return runs[0]
    latencies = tuple(s for one in runs for s in one.latencies_s)
    return Drained(
        throughput_rps=len(latencies) / max(one.makespan_s for one in runs),
        latency_s=float(np.mean(latencies)),
        latencies_s=latencies,
        failed=sum(one.failed for one in runs),
        failed_batches=sum(one.failed_batches for one in runs),
        batches=sum(one.batches for one in runs),
    )


def _alone(served: Served, rate: int, seed: int) -> Drained:
    takes_all = served.batch == "memory" and served.engine == "static" and not served.layers
    if takes_all and served.load == "at_once":
        return _all_at_once(served, rate, seed)
    return _simulated(served, rate, seed)


def _all_at_once(served: Served, rows: int, seed: int) -> Drained:
    if rows <= rows_that_fit(served):
        return _simulated(served, rows, seed)
    room = served.hbm_bytes - first_bytes(served, 0, 0)
    answered = int(room / (first_bytes(served, rows, 1) - first_bytes(served, 0, 0)))
    tokens = max(1, answered - served.prompt_tokens)  # tokens of an answer until memory is full
    lost_s = _simulated(served, rows, seed, tokens).makespan_s + served.restart_seconds
    halves = [_all_at_once(served, n, seed) for n in even_rows(rows, 2)]
    begins = (lost_s, lost_s + halves[0].makespan_s)
    ends = [begin + s for begin, half in zip(begins, halves, strict=True) for s in half.latencies_s]
    return Drained(
        throughput_rps=rows / max(ends),
        latency_s=float(np.mean(ends)),
        latencies_s=tuple(ends),
        failed=rows,
        failed_batches=1 + sum(half.failed_batches for half in halves),
        batches=1 + sum(half.batches for half in halves),
    )


def _simulated(served: Served, rate: int, seed: int, tokens: int = ANSWER_TOKENS) -> Drained:
    workload = build_workload(_workload(served, rate, tokens), [served.model], seed, [served.model])
    files, values = _system(served)  # which do not depend on the load
    prepared = _prepared(files, json.dumps(values))
    records = simulate_in_memory(prepared, workload).records
    arrived, ended = records["arrival_s"], records["finished_s"]
    return Drained(
        throughput_rps=len(records) / float(ended.max() - arrived.min()),
        latency_s=float((ended - arrived).mean()),
        latencies_s=tuple(map(float, ended - arrived)),
        batches=-(-len(records) // batch_of(served)),
    )


def first_bytes(served: Served, rows: int, tokens: int) -> float:
    """Return an unscaled server's most bytes on its first card."""
    spec = load_spec(served.model)
    layer_size, outside = layer_bytes(spec)
    layers = spec.layers // served.split - served.migrated
    weights = outside + layers * layer_size + operation_costs().process_bytes
    return weights + rows * tokens * kv_bytes(spec) * (layers + 0.5)


def rows_that_fit(served: Served) -> int:
    """Return the rows of the largest batch that fits the first card to its end."""
    bare, tokens = first_bytes(served, 0, 0), served.prompt_tokens + ANSWER_TOKENS
    return int((served.hbm_bytes - bare) / (first_bytes(served, 1, tokens) - bare))


def mean_over(served: Served, ends: tuple[int, int], average: str = "five") -> Drained:
    """Return the mean over a range of rates, by `average`."""
    low, high = ends
    rates = {
        "five": np.linspace(low, high, 5), "ends": np.array([low, high]),
        "middle": np.array([(low + high) / 2]),
    }[average]  # fmt: skip
    runs = [drained(served, round(float(rate))) for rate in rates]
    return Drained(
        throughput_rps=float(np.mean([one.throughput_rps for one in runs])),
        latency_s=float(np.mean([one.latency_s for one in runs])),
    )


def _system(served: Served) -> tuple[tuple[str, ...], dict[str, Any]]:
    over = {"one": 1, "memory": 2, "three": 3}[served.replica_devices] if served.copies == 2 else 1
    share = min(1.0, served.hbm_bytes / CARD_BYTES)
    files: tuple[str, ...] = ("system=cocoserve", f"node={NODE}", "system/vary=as_alpha")
    layout: dict[str, Any] = {
        "split": served.split, "replicated": served.layers, "copies": served.copies, "over": over,
        "migrated": served.migrated,
        "kv": "copies" if served.grown_batch == "replicas_all" else "every",
    }  # fmt: skip
    values = {
        "catalog.models": [{"spec": served.model}], "system.alpha.initial": 1,
        "system.max_batch": batch_of(served),
    }  # fmt: skip
    if served.engine != "continuous":
        host_s = static_host_s()
        if served.layers or served.migrated:
            host_s *= {"baseline": 1.0, "half": 0.5, "none": 0.0}[served.host_seconds]
        layout["host_s"] = host_s
    if served.engine == "static":
        files = (*files, "system/admit=whole_batches")
        layout["memory_share"] = share
        values["system.chunk.tokens"] = _CHUNK
    else:
        layout["memory_share"] = PAGED * share
    return files, values | {f"system.layout.{name}": value for name, value in layout.items()}


def batch_of(served: Served) -> int:
    """Return a batch's rows: unscaled, times its copies' headroom."""
    if served.batch == "memory" or served.engine != "static":
        return _MOST_ROWS
    if not served.layers or served.grown_batch == "fixed":
        return int(served.batch)
    spec = load_spec(served.model)
    scaling = Scaling(replicated=served.layers, copies=served.copies)
    copies = placement_of(scaling, spec, load_node(NODE), 0).copies
    away = 1.0 if served.grown_batch == "replicas_all" else 1.0 - 1.0 / served.copies
    layers = sum(len(devices) > 1 for devices in copies)
    if away == 1.0 and layers == spec.layers:
        return _MOST_ROWS  # the first device has no sequence; the copies' memory limits a batch
    return int(int(served.batch) * headroom(layers, away, model_layers=spec.layers))


def _workload(served: Served, rate: int, tokens: int) -> WorkloadConfig:
    at_once, many = {"requests": rate, "concurrency": rate}, 10 * rate
    arrivals: dict[str, dict[str, Any]] = {
        "at_once": {"kind": "closed_loop", **at_once},
        "closed_loop": {"kind": "closed_loop", **at_once, "requests": many},
        "ten_seconds": {"kind": "poisson", "requests": many, "rate_rps": rate},
    }
    lengths = {
        "lengths": "fixed", "prompt_tokens": served.prompt_tokens, "output_tokens": tokens,
    }  # fmt: skip
    return workload_config({"name": served.load, **arrivals[served.load], **lengths})


@lru_cache(maxsize=64)
def _prepared(files: tuple[str, ...], values: str) -> Prepared:
    return prepare(build(composed(files, json.loads(values))).serving)
