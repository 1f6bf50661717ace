"""Latency of GPT-oss 20B on a pair of GPUs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from omegaconf import DictConfig, OmegaConf

from c2c.config import build, load
from c2c.hardware import read_yaml
from c2c.models import load_spec
from c2c.policies import AsAlpha, ByWait, Static
from c2c.serving import Prepared, ServingSetup, prepare
from c2c.simulator import is_compiled, simulate_in_memory
from c2c.systems.tessera import Lanes, load_pair
from c2c.workloads import RequestBlock, Workload
from experiments.papers.tessera.workloads import GPT_OSS, MEDIANS, MXFP4_BYTES, PAIRS

__all__ = [
    "ONLINE",
    "Online",
    "apart",
    "capacity_rps",
    "latency_s",
    "one_policy",
    "served",
    "tessera_on",
]

ONLINE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "left": "left GPU alone",
        "replicas": "two GPUs apart",
        "pd": "PD",
        "af": "AF",
        "tessera": "Tessera",
    }
)
_SIDES: Final = ("left", "right")
_INTERPRETED: Final = 300  # requests; more are worth compiling for
_ANY_GAP: Final = 0.9  # gap of unused plans: the throughput policy's if only latency is used


@dataclass(frozen=True, slots=True)
class Online:
    """Latencies of a run.

    Attributes:
      per_token_s: mean of latency by token.
      worst_s: longest latency.
    """

    per_token_s: float
    worst_s: float
    switches: int


@cache
def capacity_rps(pair: str) -> float:
    """Return the left GPU's capacity, in median requests a second."""
    lane = Lanes(
        spec=load_spec(GPT_OSS), pair=load_pair(pair), context=MEDIANS[0] + MEDIANS[1] // 2,
        expert_bytes=MXFP4_BYTES,
    ).single(0)  # fmt: skip
    prompt, output = MEDIANS
    return 1 / (lane.prefill.at(prompt)[1] + output / 64 * lane.decode.at(64)[1])


@cache
def _settings(system: str) -> DictConfig:
    return load([f"system={system}", f"node={PAIRS[0]}", "workload=poisson"])


@cache
def _setup(
    system: str, pair: str, first: str | None, gbps: float | None, gap: float | None = None
) -> ServingSetup:
    settings = copy.deepcopy(_settings(system))  # composing takes longer than a run
    OmegaConf.update(settings, "node", read_yaml("node", pair), merge=False)
    options = {
        "context": MEDIANS[0] + MEDIANS[1] // 2, "prompt": MEDIANS[0], "expert_bytes": MXFP4_BYTES,
        "first": first, "gbps": gbps, "gap": gap,
    }  # fmt: skip
    for name, value in options.items():
        if value is not None:
            OmegaConf.update(settings, f"system.layout.{name}", value)
    return build(settings).serving


@cache
def _prepared(
    system: str, pair: str, first: str | None = None, gbps: float | None = None
) -> Prepared:
    return prepare(_setup(system, pair, first, gbps))


@cache
def _left_alone(pair: str) -> Prepared:
    setup = _setup("replicas", pair, None, None)
    layout = setup.system.layout
    assert layout is not None
    one = replace(layout, lanes=layout.lanes[:1])
    return prepare(replace(setup, system=replace(setup.system, layout=one)))


def tessera_on(pair: str, vary: Any, gbps: float | None = None) -> Prepared:
    """Return Tessera over a pair with a rule for its steps' policy."""
    setup = _setup("tessera", pair, None, gbps)
    return prepare(replace(setup, system=replace(setup.system, vary=vary)))


def one_policy(pair: str, *, throughput: bool, gbps: float | None = None) -> Prepared:
    """Return Tessera with one policy that never switches."""
    # at the pair's own link rate both policies' plans are cached or needed by other figures
    is_apart = gbps is not None and not throughput
    setup = _setup("tessera", pair, None, gbps, _ANY_GAP if is_apart else None)
    alpha = Static(float(throughput))
    return prepare(replace(setup, system=replace(setup.system, vary=AsAlpha(), alpha=alpha)))


def apart(pair: str) -> Prepared:
    """Return two GPUs that serve independently."""
    return _prepared("replicas", pair)


def served(prepared: Prepared, requests: RequestBlock) -> Online:
    """Return latencies and switches of served requests."""
    workload = Workload((prepared.setup.deployments[0].name,), lambda: iter([requests]))
    compiled = is_compiled() or len(requests) > _INTERPRETED
    got = simulate_in_memory(prepared, workload, compiled=compiled)
    latency_s = got.records.finished_s - got.records.arrival_s
    return Online(
        per_token_s=float(np.mean(latency_s / got.records.output_tokens)),
        worst_s=float(latency_s.max()),
        switches=got.stats.variant_changes,
    )


def latency_s(pair: str, way: str, requests: RequestBlock, gbps: float | None = None) -> float:
    """Return mean latency a token; PD and AF in the better direction."""
    if way in ("pd", "af"):
        tried = [_prepared(way, pair, first, gbps) for first in _SIDES]
    elif way == "left":
        tried = [_left_alone(pair)]
    elif way == "light":
        tried = [one_policy(pair, throughput=False, gbps=gbps)]
    elif way == "tessera":
        tried = [tessera_on(pair, ByWait(), gbps)]
    else:
        tried = [apart(pair)]
    return min(served(candidate, requests).per_token_s for candidate in tried)
