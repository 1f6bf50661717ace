"""Totals of a simulation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from c2c.serving import RESOURCES
from c2c.serving.tables.state import Serving
from c2c.simulator.expert_cache.expert_state import Experts
from c2c.simulator.failures import FailureRow
from c2c.simulator.works.world import Machine, World

__all__ = ["RunStats", "stats_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStats:
    """Totals of a finished simulation; arrays are [instances] or [chips]."""

    arrived: int
    finished: int
    failed: int
    switches: int
    cold_starts: int
    evictions: int
    dropped: int  # models that gave way in host memory
    drains: int
    preempted: int  # times that a request was set aside
    variant_changes: (
        int  # variants of steps that came into force, at most one a kind of lane a time
    )
    relayouts: int  # changes of a lane's variant that had room, where lanes share memories
    relayout_bytes: float  # that they sent
    relayout_s: float  # while they sent
    handed: int  # times that one went to another device to decode
    end_s: float
    busy_s: np.ndarray  # of steps and loads
    load_s: np.ndarray
    instance_link_bytes: np.ndarray
    instance_hbm_bytes: np.ndarray
    runs: np.ndarray  # of steps: what the event loop walked
    steps: np.ndarray
    prefill_tokens: np.ndarray
    decode_tokens: np.ndarray
    chip_link_bytes: np.ndarray  # integral of the granted rates
    chip_peak_gbps: np.ndarray
    link_capacity_gbps: float  # of a chip; of unlike ones the fastest
    resource_s: np.ndarray  # [chips, resources] of a layout that runs took; no column without one
    kv_in_bytes: float  # KV caches that came back from host memory
    kv_out_bytes: float
    prefix_asked_tokens: int  # prompts of requests that carry blocks, where a cache keeps some
    prefix_hbm_tokens: int  # of these, found in HBM
    prefix_host_tokens: int  # found in host memory
    prefix_loaded_bytes: float  # from there to HBM
    prefix_stored_bytes: float  # to host memory
    prefix_evicted_bytes: float  # of both
    expert_uses: int  # experts that layers ran, where HBM holds some only
    expert_misses: int
    expert_ahead: int  # fetched before their layer
    expert_bytes: float  # over the link
    expert_wait_s: float  # of layers for experts; with a table of misses the host's work as well
    expert_host_s: float  # of the host's work for experts that nothing hid
    since_s: np.ndarray  # begin of each slice's service, later by the time for which it was lost
    until_s: np.ndarray  # when it was lost; inf: it is in service
    failures: tuple[FailureRow, ...]  # of chips


def stats_of(
    state: Serving,
    world: World,
    machine: Machine,
    experts: Experts,
    failures: tuple[FailureRow, ...],
) -> RunStats:
    """Return the totals of a simulation so far."""
    count, link = state.count, world.link
    phase = world.phase[: len(state.device)]
    relayouts = world.phase[len(state.device) :]
    cache = experts.cache
    table, pool = state.blocks.table[0], state.blocks.pool
    return RunStats(
        arrived=int(count[0].arrived),
        finished=int(count[0].finished),
        failed=int(count[0].failed),
        switches=int(count[0].switches),
        cold_starts=int(count[0].cold_starts),
        evictions=int(count[0].evictions),
        dropped=int(count[0].dropped),
        drains=int(count[0].drains),
        preempted=int(count[0].preempted),
        variant_changes=int(count[0].variant_changes),
        handed=int(count[0].handed),
        relayouts=int(count[0].relayouts),
        relayout_bytes=float(relayouts.total_link.sum()),
        relayout_s=float(relayouts.busy_s.sum()),
        end_s=float(link.at_s.max()),
        busy_s=np.array(phase.busy_s),
        load_s=np.array(phase.load_s),
        instance_link_bytes=np.array(phase.total_link),
        instance_hbm_bytes=np.array(phase.total_hbm),
        runs=np.array(phase.total_runs),
        steps=np.array(phase.total_steps),
        prefill_tokens=np.array(phase.total_prefill),
        decode_tokens=np.array(phase.total_decode),
        chip_link_bytes=np.array(link.moved),
        chip_peak_gbps=np.array(link.peak) / 1e9,
        link_capacity_gbps=float(machine.capacity.max()) / 1e9,
        resource_s=world.works.used[:, len(RESOURCES) :].copy(),
        kv_in_bytes=float(phase.total_kv_in.sum()),
        kv_out_bytes=float(phase.total_kv_out.sum()),
        prefix_asked_tokens=int(table.asked_tokens),
        prefix_hbm_tokens=int(table.found_hbm_tokens),
        prefix_host_tokens=int(table.found_host_tokens),
        prefix_loaded_bytes=float(pool.in_bytes[: len(phase)].sum()),
        prefix_stored_bytes=float(pool.in_bytes[len(phase) :].sum()),
        prefix_evicted_bytes=float(pool.evicted_bytes.sum()),
        expert_uses=int(cache.uses.sum()),
        expert_misses=int(cache.misses.sum()),
        expert_ahead=int(cache.ahead.sum()),
        expert_bytes=float(cache.fetched_bytes.sum()),
        expert_wait_s=float(cache.wait_s.sum()),
        expert_host_s=float(cache.host_s.sum()),
        since_s=np.array(state.device.since_s),
        until_s=np.array(state.device.until_s),
        failures=failures,
    )
