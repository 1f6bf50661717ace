"""One model on one group of chips under a serving engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np

from c2c.config import build
from c2c.cost import Engine, calibration_for, load_constants
from c2c.hardware import grouped, load_platform
from c2c.models import Deployment, ModelSpec
from c2c.policies import make_policy
from c2c.serving import FAIL_NONE, Prepared, ServingSetup, activation_bytes, prepare
from c2c.simulator import simulate_in_memory
from c2c.workloads import ClosedLoop, RequestBlock, Workload

__all__ = ["Figures", "Group", "Load", "figures_of", "prepared_group", "served"]

WAVES: Final = 10  # requests of each client, as in public benchmarks
MOST_REQUESTS: Final = 2000  # of a run, at least three waves
SPREAD: Final = 0.2  # lengths are drawn from 1 - SPREAD to 1 times the given ones
RATED: Final = 1000  # requests of an open loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Chips that compute a model together; `apart`: with whole experts."""

    platform: str
    tp: int = 1
    apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests of `isl` and `osl` tokens, in a closed loop or at a rate."""

    isl: int
    osl: int
    clients: int = 0
    rate_rps: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Mean TTFT and TPOT in seconds, and output tokens a second."""

    ttft_s: float
    tpot_s: float
    tokens_s: float


def figures_of(ttft_s: float, tpot_s: float, osl: float, clients: int) -> Figures:
    """Return the figures of a closed loop."""
    request_s = ttft_s + (osl - 1) * tpot_s
    return Figures(ttft_s=ttft_s, tpot_s=tpot_s, tokens_s=clients * osl / request_s)


def served(group: Group, spec: ModelSpec, engine: Engine, load: Load) -> tuple[Figures, Any]:
    """Return a load's figures, and the records of its requests."""
    prepared = prepared_group(group, spec, engine)
    count, loop = RATED, None
    if load.clients:
        count = load.clients * max(3, min(WAVES, MOST_REQUESTS // load.clients))
        loop = ClosedLoop(concurrency=load.clients, ramp_s=0.0)
    rng = np.random.default_rng(0)
    at_s = np.zeros(count)
    if not load.clients:
        at_s = np.cumsum(rng.exponential(1.0 / load.rate_rps, count))
    prompts, outputs = (
        np.maximum(1, np.rint(most * rng.uniform(1.0 - SPREAD, 1.0, count))).astype(np.int32)
        for most in (load.isl, load.osl)
    )
    block = RequestBlock(
        arrival_s=at_s, model=np.zeros(count, np.int32), prompt_tokens=prompts,
        output_tokens=outputs,
    )  # fmt: skip
    workload = Workload((spec.name,), lambda: iter([block]), {"requests": count}, loop)
    records = simulate_in_memory(prepared, workload).records
    done = records[records.failure == FAIL_NONE]
    some = done[done.output_tokens > 1]
    tpot_s = float(((some.finished_s - some.first_token_s) / (some.output_tokens - 1)).mean())
    ttft_s = engine.request_s + float((done.first_token_s - done.arrival_s).mean())
    figures = figures_of(ttft_s, tpot_s, load.osl, load.clients)
    if not load.clients:
        tokens_s = float(done.output_tokens.sum() / (done.finished_s.max() - at_s[0]))
        figures = replace(figures, tokens_s=tokens_s)
    return figures, done


@cache
def _base(group: Group, chunk_tokens: int) -> ServingSetup:
    from c2c.config import load

    base = build(load([
        f"hardware={group.platform}", "catalog=dense", "catalog.models=[{spec: llama-3-3b}]",
        "workload=deterministic", "workload.requests=1", "system=serverlessllm",
        "system.starts_active=true", "system.check_slo=false",
        f"system.chunk.tokens={chunk_tokens}", f"system.profile.chunks=[{chunk_tokens}]",
    ])).serving  # fmt: skip
    variant = base.link_variant
    together = grouped(base.platform, group.tp, variant=variant, experts_apart=group.apart)
    return replace(base, platform=together)


def prepared_group(group: Group, spec: ModelSpec, engine: Engine) -> Prepared:
    """Return the engine with one model on the chips."""
    # hashable parts only: an engine's sources are a mapping
    factor = load_platform(group.platform).host.host_factor
    constants = engine.constants(load_constants(calibration_for(group.platform)), factor)
    return _prepared(
        group, spec, constants, engine.memory_share, engine.chunk_tokens, engine.max_batch,
        engine.batch,
    )  # fmt: skip


@cache
def _prepared(
    group: Group, spec: ModelSpec, constants: Any, memory_share: float, chunk_tokens: int,
    max_batch: int, batch: str,
) -> Prepared:  # fmt: skip
    base = _base(group, chunk_tokens)
    deployment = Deployment(name=spec.name, spec=spec, ttft_slo_s=1.0, tpot_slo_s=1.0)
    # An engine's share is for weights and KV cache; activations use the rest.
    rest = (1.0 - memory_share) * base.platform.gpu.hbm_bytes
    reserve_bytes = max(0.0, rest - activation_bytes(spec, chunk_tokens))
    system = replace(
        base.system, hbm_reserve_bytes=reserve_bytes, batch=make_policy("batch", {"policy": batch}),
        max_batch=max_batch,
    )  # fmt: skip
    return prepare(replace(base, deployments=(deployment,), constants=constants, system=system))
