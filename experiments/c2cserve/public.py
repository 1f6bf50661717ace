"""Baselines of the replay as public code schedules them, on one GPU: the readings of Figs. 12, 13.

A request's times are those of the cost model with an engine of the reading `engine`; the schedulers
are `experiments.c2cserve.router` and `batches_to_their_end`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from c2c.config import SimulationResult, build
from c2c.cost import StepTable, load_constants, load_engine, step_table, step_time
from c2c.hardware import link_gbps, load_mig, load_platform, slices
from c2c.models import load_spec, weight_bytes
from c2c.workloads import RequestBlock
from experiments.c2cserve.baselines import engine_settings
from experiments.c2cserve.replay import replay, replay_settings
from experiments.c2cserve.router import Router, first_tokens
from experiments.c2cserve.settings import composed
from experiments.figure import Context

__all__ = ["Requests", "aegaeon_ttft_s", "batches_to_their_end", "requests_of", "routed_ttft_s",
           "served_ttft_s"]  # fmt: skip

Seconds = npt.NDArray[np.float64]

MOST_TOKENS: Final = 8192  # of a prompt step
MOST_ROWS: Final = 16  # of a batch, mini-aegaeon's default
PRINTED_START_S: Final = 1.7  # Fig. 11, ServerlessLLM
TICKS_S: Final = 1.0  # two ticks of a second, half of each in the mean


# Aegaeon's artefact: a prompt goes where fewest wait, whatever turns that costs, and runs alone.
ARTEFACT: Final = ("system.place.turns=0", "system/batch=prompts_alone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests of a replay in order of arrival, with the names of their models' specs."""

    specs: tuple[str, ...]
    block: RequestBlock


def requests_of(
    context: Context, compression: float, overrides: Sequence[str], seed: int
) -> Requests:
    """Return the requests that `experiments.c2cserve.replay.replay` serves."""
    setup = build(composed(*replay_settings(context, compression, overrides, seed)))
    blocks = list(setup.workload.blocks())
    fields = ("arrival_s", "model", "prompt_tokens", "output_tokens")
    joined: dict[str, Any] = {f: np.concatenate([getattr(b, f) for b in blocks]) for f in fields}
    names = tuple(d.spec.name for d in setup.serving.deployments)
    return Requests(specs=names, block=RequestBlock(**joined))


@cache
def _table(spec: str, engine: str, system: str, weights: str, link: str) -> StepTable:
    platform = load_platform("gh200")
    constants = load_constants("gh200")
    for setting in engine_settings(system, engine):
        key, _, name = setting.partition("=")
        if key == "engine":
            factor = platform.host.host_factor if engine == "public_grace" else None
            constants = load_engine(name).constants(constants, factor)
    (whole,) = slices(platform, load_mig("1x96gb"))
    return step_table(
        load_spec(spec), whole, constants, link_gbps(platform.link, link),  # type: ignore[arg-type]
        max_tokens=MOST_TOKENS, max_rows=MOST_ROWS, alphas=(0.0,),
        weights=weights,  # type: ignore[arg-type]
    )  # fmt: skip


def _copy_s(spec: str, link: str) -> float:
    platform = load_platform("gh200")
    return float(weight_bytes(load_spec(spec))) / (link_gbps(platform.link, link) * 1e9)  # type: ignore[arg-type]


def _prompts_s(table: StepTable, prompts: Sequence[int]) -> float:
    """Return the seconds of a step of whole prompts; longer ones take steps in proportion."""
    total = sum(prompts)
    held = min(total, table.max_tokens)
    pairs = sum(n * (n + 1) / 2.0 for n in prompts)
    rest_s = table.prefill_attention_s[held] + table.body_s[held, 0]
    return float(
        rest_s * (total / held) + table.head_s[len(prompts), 0] + table.attn_s_per_pair * pairs
        + table.step_overhead_s
    )  # fmt: skip


def _decode_s(table: StepTable, rows: int, cached: float) -> float:
    return step_time(
        table, decode_seqs=rows, decode_kv_tokens=rows * cached, head_rows=rows
    ).seconds


def routed_ttft_s(
    requests: Requests,
    context: Context,
    engine: str,
    *,
    at_client: bool,
    has_ticks: bool,
    seed: int,
) -> Seconds:
    """Return TTFT of each request under ServerlessLLM's public router."""
    link, block = context.link_variant, requests.block
    constants = load_constants("gh200")
    tables = [_table(s, engine, "serverlessllm", "hbm", link) for s in requests.specs]
    load_s = [
        PRINTED_START_S - TICKS_S if has_ticks
        else constants.sllm_init_s(moe=False) + _copy_s(spec, link) for spec in requests.specs
    ]  # fmt: skip
    count = len(block.arrival_s)
    prompt_s, answer_s = np.zeros(count), np.zeros(count)
    for i, (m, prompt, output) in enumerate(
        zip(block.model, block.prompt_tokens, block.output_tokens, strict=True)
    ):
        prompt_s[i] = _prompts_s(tables[m], [int(prompt)])
        decode_s = _decode_s(tables[m], 1, prompt + output / 2.0)
        answer_s[i] = prompt_s[i] + (output - 1) * decode_s
    first_s, last_s = first_tokens(
        block.arrival_s, block.model.tolist(), load_s, prompt_s, answer_s, Router(), seed
    )
    found: Seconds = (last_s if at_client else first_s) - block.arrival_s
    return found


def batches_to_their_end(
    requests: Requests, context: Context, engine: str, *, hybrid: bool = False
) -> Seconds:
    """Return TTFT of each request under the rule of a public prototype of Aegaeon.

    Up to 16 requests of the model that waits longest run together to the end of the longest answer;
    then the next model's weights are copied. With HybridGEMM the first step of a model streams them
    instead, and leaves them in HBM.

    Source: github.com/Zyyeric/mini-aegaeon commit c6bbeb6, `scheduling/colocated.py`.
    """
    link, block = context.link_variant, requests.block
    tables = [_table(s, engine, "aegaeon", "hbm", link) for s in requests.specs]
    streamed = [_table(s, engine, "aegaeon", "staged", link) for s in requests.specs]
    copies_s = [0.0 if hybrid else _copy_s(spec, link) for spec in requests.specs]
    waiting = [deque[int]() for _ in requests.specs]
    count = len(block.arrival_s)
    first_s = np.full(count, math.inf)
    now_s, came, resident = 0.0, 0, -1
    while came < count or any(waiting):
        if not any(waiting):
            now_s = max(now_s, float(block.arrival_s[came]))
        while came < count and block.arrival_s[came] <= now_s:
            waiting[block.model[came]].append(came)
            came += 1
        model = min((q[0], m) for m, q in enumerate(waiting) if q)[1]
        batch = [waiting[model].popleft() for _ in range(min(MOST_ROWS, len(waiting[model])))]
        is_new = model != resident
        now_s += copies_s[model] * is_new
        resident = model
        prompts = [int(block.prompt_tokens[r]) for r in batch]
        now_s += _prompts_s((streamed if hybrid and is_new else tables)[model], prompts)
        first_s[batch] = now_s
        longest = max(int(block.output_tokens[r]) for r in batch)
        cached = float(np.mean(prompts)) + longest / 2.0
        now_s += (longest - 1) * _decode_s(tables[model], len(batch), cached)
    ttft_s: Seconds = first_s - block.arrival_s
    return ttft_s


def served_ttft_s(got: SimulationResult) -> tuple[Seconds, Seconds]:
    """Return TTFT of each request of a run, inf for one that failed, and the arrivals."""
    arrival_s = got.requests["arrival_s"].to_numpy()
    ttft_s = got.requests["first_token_s"].to_numpy() - arrival_s
    served = np.asarray(got.requests["status"].to_pylist()) == "finished"
    return np.where(served, ttft_s, np.inf), arrival_s


def aegaeon_ttft_s(
    context: Context, compression: float, settings: Sequence[str], *, engine: str, scheduler: str,
    seed: int, hybrid: bool = False,
) -> tuple[Seconds, Seconds]:  # fmt: skip
    """Return TTFT of each request of a replay by Aegaeon, and the arrivals."""
    system = "aegaeon_hybrid" if hybrid else "aegaeon"
    if scheduler == "batches":
        requests = requests_of(context, compression, [*settings, f"system={system}"], seed)
        ttft_s = batches_to_their_end(requests, context, engine, hybrid=hybrid)
        return ttft_s, requests.block.arrival_s
    more = (*engine_settings(system, engine), *(ARTEFACT if scheduler == "artefact" else ()))
    return served_ttft_s(replay(context, compression, [*settings, f"system={system}", *more], seed))
