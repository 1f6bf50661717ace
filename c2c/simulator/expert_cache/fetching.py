"""Cost of a step's experts outside HBM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from c2c.policies import apart
from c2c.serving.tables.state import Fleet, Rules, Serving
from c2c.simulator.expert_cache.expert_state import Experts
from c2c.simulator.expert_cache.experts import (
    end_sequence,
    fill_experts,
    nth_request,
    walk_experts,
)
from c2c.simulator.expert_cache.miss_table import MissTable, steps_missing

__all__ = ["experts_of_start", "experts_of_step"]


def _has_caches(values: Mapping[type, Any]) -> bool:
    return bool(values[Rules].traits.experts.caches_experts)


@apart("step_experts", needed=_has_caches)
def experts_of_step(
    fleet: Fleet,
    rules: Rules,
    misses: MissTable,
    experts: Experts,
    state: Serving,
    d: int,
    steps: int,
    alone_s: float,
) -> tuple[float, float]:
    """Return seconds and link bytes of experts in a run's steps."""
    if misses.is_used:
        nth = nth_request(experts, state, d)
        waits_s, fetched = steps_missing(misses, fleet, state, d, nth)
        experts.cache[d].wait_s += waits_s * steps
        experts.cache[d].fetched_bytes += fetched * steps
        return waits_s, fetched
    system = rules.system
    return walk_experts(system.experts, system.prefetch, experts, fleet, state, d, alone_s)


@apart("start_experts", needed=_has_caches)
def experts_of_start(
    fleet: Fleet,
    rules: Rules,  # noqa: ARG001 (by which a part is found)
    misses: MissTable,
    experts: Experts,
    m: int,
    kind: int,
    d: int,
) -> None:
    """Fill device `d`'s expert cache at model `m`'s start."""
    before = experts.cache[d].model
    if before >= 0 and not misses.is_used:
        arch = int(fleet.deployment[before].arch)
        end_sequence(experts, arch, d)
    fill_experts(experts, fleet, m, kind, d)
