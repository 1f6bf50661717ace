"""The simulated hardware of a prepared setup: link, HBM, disk, activation times."""

from __future__ import annotations

from typing import Any

import numpy as np

from c2c.cost import kernel_link_gbps
from c2c.models import weight_bytes
from c2c.policies import caches_experts, fetches_ahead, swaps_weights, weights_in
from c2c.serving import (
    DRAWS,
    RESOURCES,
    START_WHEN,
    Prepared,
    Serving,
    expert_bytes,
    expert_layers,
)
from c2c.simulator.chains import Chains, no_chains
from c2c.simulator.compiled import is_compiled
from c2c.simulator.experts import Experts, ExpertTables, fill_experts, new_experts
from c2c.simulator.miss_table import DECODES, MissTable, measured_misses, no_misses
from c2c.simulator.traces import Traces
from c2c.simulator.works import Starts
from c2c.simulator.world import Machine
from c2c.workloads import ClosedLoop, RequestBlock, router_tables

__all__ = ["build_experts", "build_machine"]

_INTERPRETED_LAYERS = 16  # more are walked sooner by code that has to be compiled first


def build_machine(prepared: Prepared) -> Machine:
    """Return the backend's constants.

    Activation of a model in host memory takes the switch time of C2CServe (nothing is copied), or
    for a system with resident weights its engine initialisation plus the copy over the link,
    which competes with whatever else uses the link.
    """
    setup, constants = prepared.setup, prepared.setup.constants
    where = weights_in(setup.system.load)
    streams = where != "hbm"
    deployments = setup.deployments
    weights = np.array([float(weight_bytes(d.spec)) for d in deployments])
    moe = [d.spec.experts > 0 for d in deployments]
    calibrated = constants.switch_s if streams else constants.sllm_init_s
    start_s = setup.system.load.start_s
    kinds = prepared.slice_kinds
    # Weights are where a layout's lanes compute: one that opens copies nothing.
    is_there = streams or setup.system.layout is not None
    copied = np.zeros((len(weights), len(kinds))) if is_there else _held_bytes(prepared)
    shared = prepared.link_capacity_gbps
    cap = [
        prepared.tables[0][k].link_cap_gbps if where == "host" else min(s.link_cap_gbps, shared)
        for k, s in enumerate(kinds)
    ]
    return Machine(
        capacity=shared * 1e9,
        hbm=np.array([k.hbm_gbps * 1e9 for k in kinds]),
        link_cap=np.array(cap) * 1e9,
        load_s=np.array([calibrated(moe=m) if start_s is None else start_s for m in moe]),
        load_link_bytes=copied,
        weight_bytes=weights,
        disk=setup.platform.host.disk_gbps * 1e9,
        # Every system starts its runtime from scratch then (C2CServe section 9.2.2), and activates
        # the model as at a switch.
        cold_init_s=constants.engine_init_s,
        turn_s=float(setup.system.turn_s),
        turn_bytes=weights * swaps_weights(setup.system.load),
        is_ahead=_are_ahead(prepared, weights),
        between=float(setup.system.hand_over_gbps) * 1e9,
        tick_s=float(setup.system.tick_s),
        starts=_starts(prepared, weights, np.array(cap)),
        misses=_misses(prepared),
        chains=_chains(prepared),
    )


def _chains(prepared: Prepared) -> Chains:
    """Return the works of each (model, kind of lane)'s step, and none where a step is one work."""
    layout = prepared.setup.system.layout
    if layout is None:
        return no_chains()
    largest = prepared.tables[0][0].max_tokens
    found = [
        layout.chains_of(kind, spec.name)
        for spec in prepared.architectures
        for kind in prepared.slice_kinds
    ]
    works = max(
        part.alone_s.shape[1] for chains in found for c in chains for part in (c.prefill, c.decode)
    )

    def table(part: str, which: int) -> np.ndarray:
        made = [[getattr(chain, part).upto(largest)[which] for chain in chains] for chains in found]
        shape = made[0][0].shape[1:]
        every = np.zeros((len(found), layout.variants, works, *shape))
        for k, chains in enumerate(made):
            for v, one in enumerate(chains):
                every[k, v, : len(one)] = one
        return every

    return Chains(
        prefill_s=table("prefill", 0),
        decode_s=table("decode", 0),
        prefill_use=table("prefill", 1),
        decode_use=table("decode", 1),
        first=len(RESOURCES),
        by_age=layout.by_age,
        switch_s=layout.switch_s,
    )


def _misses(prepared: Prepared) -> MissTable:
    if not prepared.fleet.folds_experts:
        return no_misses()
    return measured_misses(prepared, _phases)


def _phases(prepared: Prepared, block: RequestBlock, traces: Traces | None) -> tuple[Any, Traces]:
    """Return the phases of requests that are served one after another, and what they stored."""
    from c2c.simulator.run import Simulation, run_blocks  # which is built on this module

    layers = sum(expert_layers(s) for s in prepared.architectures)
    simulation = Simulation.start(
        prepared,
        build_machine(prepared),
        loop=ClosedLoop(concurrency=1),
        compiled=is_compiled() or layers > _INTERPRETED_LAYERS,
        timeline_rows=len(block) * (DECODES + 2),
    )
    if traces is not None:
        simulation.experts = simulation.experts._replace(traces=traces)
    run_blocks(simulation, [block], lambda _: None)
    return simulation.timeline(), simulation.experts.traces


def _are_ahead(prepared: Prepared, weights: np.ndarray) -> np.ndarray:
    """Return whether HBM has a second room for a model's weights [model, kind]."""
    system = prepared.setup.system
    room = np.array([k.hbm_bytes - system.hbm_reserve_bytes for k in prepared.slice_kinds])
    fits: np.ndarray = fetches_ahead(system.load) & (2.0 * weights[:, None] < room)
    return fits


def _held_bytes(prepared: Prepared) -> np.ndarray:
    """Return the weights [model, kind] that HBM holds once a model is there."""
    specs = [d.spec for d in prepared.setup.deployments]
    arch = prepared.fleet.deployment.arch
    missing = [expert_layers(s) * s.experts for s in specs] - prepared.expert_slots[arch].T
    one = np.array([expert_bytes(s) for s in specs])
    whole = np.array([float(weight_bytes(s)) for s in specs])
    held: np.ndarray = (whole - missing * one).T.copy()
    return held


def build_experts(prepared: Prepared, state: Serving) -> Experts:
    """Return the caches of experts at the start: of models that are active, as after a load."""
    setup, system = prepared.setup, prepared.setup.system
    specs, kinds = prepared.architectures, prepared.slice_kinds
    one = np.array([expert_bytes(s) for s in specs])
    copy_gbps = np.array([min(k.link_cap_gbps, prepared.link_capacity_gbps) for k in kinds])
    kernel_gbps = [
        float(kernel_link_gbps(k, setup.constants.on(k), prepared.link_capacity_gbps))
        for k in kinds
    ]
    hbm_gbps = [k.hbm_gbps * setup.constants.on(k).expert_hbm_efficiency for k in kinds]
    longer = 1.0 / np.array(kernel_gbps) - 1.0 / np.array(hbm_gbps)
    tables = ExpertTables(
        router=router_tables(
            setup.router,
            [(expert_layers(s), s.experts, s.experts_per_token) for s in specs],
            setup.seed,
        ),
        slots=prepared.expert_slots,
        fetch_s=np.outer(one, 1e-9 / copy_gbps),
        read_s=np.outer(one, 1e-9 * np.maximum(longer, 0.0)),
        expert_bytes=one,
        host_s=float(system.expert_host_s),
        is_host_for_copies=system.expert_host == "fetch",
        is_streamed=system.expert_miss == "stream",
    )
    caches = caches_experts(system.experts)
    models = len(setup.deployments)
    experts = new_experts(tables, system.prefetch, len(state.device), models, caches)
    for inst in state.instance:
        if caches and inst.model >= 0:
            m, d = int(inst.model), int(inst.on_device)
            fill_experts(experts, prepared.fleet, m, int(inst.kind), d)
    return experts


def _starts(prepared: Prepared, weights: np.ndarray, link_gbps: np.ndarray) -> Starts:
    setup = prepared.setup
    plan = setup.system.start
    names = [w.name for w in plan]
    held = _held_bytes(prepared)
    specs = [d.spec.name for d in setup.deployments]
    alone_s = np.zeros((len(weights), len(link_gbps), len(plan)))
    moved = np.zeros_like(alone_s)
    link_bytes = np.zeros((len(weights), len(link_gbps), 2))
    on = np.full((len(plan), DRAWS), -1, np.int64)
    for w, work in enumerate(plan):
        rates = {"link": link_gbps, "disk": np.full(len(link_gbps), setup.platform.host.disk_gbps)}
        on[w, : len(work.over)] = [RESOURCES.index(name) for name in work.over]
        alone_s[:, :, w] = [[work.seconds_of(name)] for name in specs]
        if work.moves == "weights":
            slowest = np.min([rates[name] for name in work.over], axis=0) * 1e9
            if work.gbps is not None:
                slowest = np.minimum(slowest, work.gbps * 1e9)
            # What passes through the disk is the whole checkpoint, what is only copied is held.
            moved[:, :, w] = work.share * (weights[:, None] if "disk" in work.over else held)
            alone_s[:, :, w] += moved[:, :, w] / slowest[None, :]
            for is_cold in range(2):
                if "link" in work.over and work.when != ("cold", "held")[is_cold]:
                    link_bytes[:, :, is_cold] += moved[:, :, w]
    return Starts(
        alone_s=alone_s,
        moved=moved,
        link_bytes=link_bytes,
        on=on,
        rank=np.array([w.rank for w in plan], np.int64),
        after=np.array([sum(1 << names.index(a) for a in w.after) for w in plan], np.int64),
        when=np.array([START_WHEN.index(w.when) for w in plan], np.int64),
    )
