"""Table of the cost of missing experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from c2c.cost import cache_pairs, cache_places, chunk_places
from c2c.errors import SettingError
from c2c.policies import inlined, jitable
from c2c.serving import Prepared
from c2c.serving.tables.costs import step_alone_s
from c2c.serving.tables.state import ENDS_AT, LENGTH, PLAN_DTYPE, SLOT, Fleet, Serving
from c2c.simulator.expert_cache.traces import Traces
from c2c.workloads import RequestBlock

__all__ = ["DECODES", "MissTable", "measured_misses", "no_misses", "steps_missing"]

FIRST: Final = 6  # starts whose first request is measured beyond its prompt
THEN: Final = 48  # requests after one start, of which the first third is not counted
DECODES: Final = 128  # steps of each; later ones take what the last quarter of them does

PhasesOf = Callable[[Prepared, RequestBlock, Traces | None], tuple[Any, Traces]]


class MissTable(NamedTuple):
    """Added seconds and bytes by architecture; axis 1: first request after a start, others."""

    is_used: bool
    decode: Any  # f8[A, 2, DECODES + 1, 2] of all decode steps up to this one
    prompt: Any  # f8[A, 2, tokens + 1, 2] of a step with so many prompt tokens


def no_misses() -> MissTable:
    """Return an empty table."""
    return MissTable(False, np.zeros((1, 2, 2, 2)), np.zeros((1, 2, 2, 2)))


@jitable
def _decodes_until(table: MissTable, arch: int, row: int, steps: int, column: int) -> float:
    # Of the first `steps` decode steps of a request.
    last_step = table.decode.shape[2] - 1
    if steps <= last_step:
        return float(table.decode[arch, row, steps, column])
    late = last_step - last_step // 4
    last = table.decode[arch, row, last_step, column]
    slope = (last - table.decode[arch, row, late, column]) / (last_step - late)
    return float(last + (steps - last_step) * slope)


@inlined
def steps_missing(
    table: MissTable, fleet: Fleet, state: Serving, d: int, nth: int
) -> tuple[float, float]:
    """Return the mean added seconds and bytes of device `d`'s next step."""
    plan = state.plan[d]
    i = int(plan.instance)
    arch = int(fleet.deployment[state.instance[i].model].arch)
    row = 1 if nth > 0 else 0
    if plan.prefill > 0:
        tokens = min(int(plan.prefill), table.prompt.shape[2] - 1)
        return table.prompt[arch, row, tokens, 0], table.prompt[arch, row, tokens, 1]
    rest = state.decoding[i, 0, ENDS_AT] - state.instance[i].decode_clock
    length = state.decoding[i, 0, LENGTH] - rest
    done = int(length - state.request[state.decoding[i, 0, SLOT]].prompt - 1)
    steps = int(plan.steps)
    seconds = _decodes_until(table, arch, row, done + steps, 0)
    moved = _decodes_until(table, arch, row, done + steps, 1)
    seconds -= _decodes_until(table, arch, row, done, 0)
    moved -= _decodes_until(table, arch, row, done, 1)
    return seconds / steps, moved / steps


def measured_misses(prepared: Prepared, phases_of: PhasesOf) -> MissTable:
    """Return a system's table, measured by the exact walk."""
    system = prepared.setup.system
    cache = replace(system.expert_cache, misses="exact")
    exact = replace(
        prepared,
        setup=replace(prepared.setup, system=replace(system, expert_cache=cache)),
        fleet=prepared.fleet._replace(folds_experts=False),
    )
    arch_of = prepared.fleet.deployment.arch.tolist()
    longest = prepared.fleet.costs.body_s.shape[1] - 1
    decode = np.zeros((len(prepared.architectures), 2, DECODES + 1, 2))
    prompt = np.zeros((len(prepared.architectures), 2, longest + 1, 2))
    for arch in range(len(prepared.architectures)):
        m = arch_of.index(arch)
        tried = _prompts(prepared, arch, m)
        served, traces = phases_of(exact, _one_by_one(m, tried * THEN, 100, THEN), None)
        then = _beside(exact, arch, served)
        first = []
        for start, tokens in enumerate(tried):
            decodes = DECODES if start % max(1, len(tried) // FIRST) == 0 else 0
            block = _one_by_one(m, [tokens], start, decodes=decodes)
            served, traces = phases_of(exact, block, traces)
            first.append(_beside(exact, arch, served))
        for row, rows in enumerate((np.concatenate(first), then)):
            decode[arch, row, 1:], prompt[arch, row] = _means(rows, row * THEN // 3, longest)
    return MissTable(True, decode, prompt)


def _prompts(prepared: Prepared, arch: int, m: int) -> list[int]:
    fleet = prepared.fleet
    most = min(int(fleet.kv_capacity[arch].max()), int(fleet.deployment[m].max_context))
    most = min(most - DECODES - 1, int(fleet.chunk[arch].max()))
    if most < 1:
        raise SettingError(
            "system.expert_cache.misses",
            "table",
            f"exact where HBM or the context of {prepared.architectures[arch].name} has no room "
            f"for {DECODES + 2} tokens",
        )
    return [1 << k for k in range(most.bit_length()) if 1 << k < most] + [most]


def _one_by_one(
    m: int, prompts: list[int], first_id: int, most: int = 1, decodes: int = DECODES
) -> RequestBlock:
    n = min(most, len(prompts))
    return RequestBlock(
        arrival_s=np.zeros(n),
        model=np.full(n, m, np.int32),
        prompt_tokens=np.array(prompts[:n], np.int32),
        output_tokens=np.full(n, decodes + 1, np.int32),
        ids=np.arange(first_id, first_id + n),
    )


def _beside(exact: Prepared, arch: int, phases: Any) -> np.ndarray:
    """Return request, prompt tokens, decode step, and seconds and bytes added by misses."""
    costs, layers = exact.fleet.costs, int(exact.fleet.layers[arch])
    plan = np.zeros(1, PLAN_DTYPE).view(np.recarray)[0]
    cache = exact.tables[arch][0].cache
    rows = []
    request, cached, step = -1, 0, 0
    for phase in phases[phases["is_load"] == 0]:
        tokens = int(phase["prefill_tokens"])
        if tokens > 0:
            request, cached, step = request + 1, tokens, 0
            plan.prefill, plan.decodes, plan.decode_kv = tokens, 0, 0
            plan.pairs = cache_pairs(0, tokens, cache)
            plan.prefill_kv = chunk_places(0, tokens, cache)
        else:
            cached, step = cached + 1, step + 1
            plan.prefill, plan.decodes = 0, 1
            plan.decode_kv = cache_places(cached, cache)
            plan.pairs, plan.prefill_kv = 0.0, 0
        plan.rows = 1
        pair = arch * costs.kinds
        seconds = float(phase["end_s"] - phase["start_s"])
        beyond_s = seconds - step_alone_s(costs, pair, plan, layers, 0)
        moved = float(phase["link_gbps"]) * 1e9 * seconds
        rows.append((request, tokens, step, beyond_s, moved))
    return np.array(rows)


def _means(rows: np.ndarray, skip: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    from scipy.interpolate import PchipInterpolator  # a fifth of a second that few runs need

    rows = rows[rows[:, 0] >= skip] if skip else rows
    decodes, prompts = rows[rows[:, 1] == 0], rows[rows[:, 1] > 0]
    means = np.array([decodes[decodes[:, 2] == k + 1, 3:].mean(axis=0) for k in range(DECODES)])
    sizes = np.unique(prompts[:, 1])
    of_size = np.array([prompts[prompts[:, 1] == n, 3:].mean(axis=0) for n in sizes])
    if len(sizes) == 1:
        return np.cumsum(means, axis=0), np.repeat(of_size, longest + 1, axis=0)
    # The more tokens, the more find their experts fetched for others: a line over an octave would
    # lie below.
    every = np.log2(np.clip(np.arange(longest + 1), sizes[0], sizes[-1]))
    return np.cumsum(means, axis=0), PchipInterpolator(np.log2(sizes), of_size)(every)
