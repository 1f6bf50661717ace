"""Simulated hardware of a prepared setup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from c2c.cost import Constants
from c2c.models import host_bytes, weight_bytes
from c2c.policies import weights_in
from c2c.serving import (
    DRAWS,
    RESOURCES,
    Plan,
    Prepared,
    Way,
    expert_bytes,
    expert_layers,
    plan_tables,
    start_plan,
)
from c2c.simulator.compiled_loop import is_compiled
from c2c.simulator.expert_cache.miss_table import DECODES, MissTable, measured_misses, no_misses
from c2c.simulator.expert_cache.traces import Traces
from c2c.simulator.run import Simulation, run_blocks
from c2c.simulator.works.world import Machine
from c2c.workloads import ClosedLoop, RequestBlock

__all__ = ["build_machine"]

_INTERPRETED_LAYERS = 16  # more are walked sooner by code that has to be compiled first


def build_machine(prepared: Prepared) -> Machine:
    """Return the simulated hardware's constants."""
    setup = prepared.setup
    where = weights_in(setup.system.load)
    streams = where != "hbm"
    deployments = setup.deployments
    weights = prepared.fleet.weight_bytes
    whole = np.array([float(weight_bytes(d.spec)) for d in deployments])
    moe = [d.spec.experts > 0 for d in deployments]
    start_s = setup.system.load.start_s
    kinds = prepared.kinds

    def activation_s(constants: Constants, moe: bool) -> float:
        if start_s is not None:
            return float(start_s)
        return constants.switch_s(moe=moe) if streams else constants.sllm_init_s(moe=moe)

    # Weights are where a layout's lanes compute: one that opens copies nothing.
    is_there = streams or setup.system.layout is not None
    copied = np.zeros((len(weights), len(kinds))) if is_there else _held_bytes(prepared)
    cap = [
        prepared.tables[0][k].link_cap_gbps
        if where == "host"
        else min(kind.slice.link_cap_gbps, kind.link_gbps)
        for k, kind in enumerate(kinds)
    ]
    layout = setup.system.layout
    resources = () if layout is None else layout.resources
    plans: list[Plan] = []
    ways = () if layout is None else layout.ways
    start_plan = _start_plans(prepared, plans, weights, np.array(cap))
    step_plan = _step_plans(prepared, plans)
    return Machine(
        capacity=prepared.link_gbps * 1e9,
        hbm=np.array([kind.slice.hbm_gbps * 1e9 for kind in kinds]),
        link_cap=np.array(cap) * 1e9,
        load_s=np.array([[activation_s(kind.constants, m) for kind in kinds] for m in moe]),
        load_link_bytes=copied,
        weight_bytes=weights,
        disk=np.repeat(
            [part.platform.host.disk_gbps * 1e9 for part in setup.parts],
            [part.count for part in setup.parts],
        ),
        # Every system starts its runtime from scratch then (C2CServe section 9.2.2), and activates
        # the model as at a switch.
        cold_init_s=np.array([kind.constants.engine_init_s for kind in kinds]),
        turn_s=float(setup.system.engines.turn_s),
        turn_bytes=whole * setup.system.load_traits.swaps_weights,
        is_ahead=_are_ahead(prepared, whole),
        between=float(setup.system.disaggregation.hand_over_gbps) * 1e9,
        sends_directly=prepared.fleet.hands_directly,
        max_batch=prepared.fleet.max_batch,
        cuts_runs=False,
        most_steps=2**62,
        misses=_misses(prepared),
        plans=plan_tables(plans, (*RESOURCES, *resources), prepared.tables[0][0].max_tokens),
        start_plan=start_plan,
        step_plan=step_plan,
        lanes=len(resources),
        by_age=layout is not None and layout.by_age,
        switch_s=0.0 if layout is None else layout.switch_s,
        way_on=_way_on(ways, (*RESOURCES, *resources)),
        way_latency_s=np.array([w.latency_s for w in ways]),
        way_rate=np.array([w.gbps * 1e9 for w in ways]),
        way_rank=np.array([w.rank for w in ways], np.int64),
    )


def _way_on(ways: Sequence[Way], resources: Sequence[str]) -> np.ndarray:
    result = np.full((len(ways), DRAWS), -1, np.int64)
    for row, way in zip(result, ways, strict=True):
        row[: len(way.resources)] = [resources.index(name) for name in way.resources]
    return result


def _step_plans(prepared: Prepared, plans: list[Plan]) -> np.ndarray:
    layout = prepared.setup.system.layout
    if layout is None:
        return np.zeros((0, 0), np.int64)
    numbers = []
    for spec in prepared.architectures:
        for kind in prepared.slice_kinds:
            steps = layout.steps_of(kind, spec.name)
            numbers.append(np.arange(len(steps)) + len(plans))
            plans += steps
    return np.array(numbers)


def _misses(prepared: Prepared) -> MissTable:
    if not prepared.fleet.folds_experts:
        return no_misses()
    return measured_misses(prepared, _phases)


def _phases(prepared: Prepared, block: RequestBlock, traces: Traces | None) -> tuple[Any, Traces]:
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
    """Return b1[model, kind]: HBM has a second room for weights."""
    system = prepared.setup.system
    room = np.array([k.hbm_bytes - system.hbm_reserve_bytes for k in prepared.slice_kinds])
    fits: np.ndarray = system.load_traits.fetches_ahead & (2.0 * weights[:, None] < room)
    return fits


def _held_bytes(prepared: Prepared) -> np.ndarray:
    specs = [d.spec for d in prepared.setup.deployments]
    arch = prepared.fleet.deployment.arch
    missing = [expert_layers(s) * s.experts for s in specs] - prepared.expert_slots[arch].T
    one = np.array([expert_bytes(s) for s in specs])
    drafts = prepared.fleet.weight_bytes - host_bytes(prepared.setup.deployments)
    whole = np.array([float(weight_bytes(s)) for s in specs]) + drafts
    nbytes: np.ndarray = (whole - missing * one).T.copy()
    return nbytes


def _start_plans(
    prepared: Prepared, plans: list[Plan], weights: np.ndarray, link_gbps: np.ndarray
) -> np.ndarray:
    setup = prepared.setup
    works = setup.system.start
    numbers = np.zeros((len(weights) if works else 0, len(link_gbps), 2), np.int64)
    nbytes = _held_bytes(prepared)
    for m, kind, is_cold in np.ndindex(numbers.shape):
        numbers[m, kind, is_cold] = len(plans)
        plans.append(
            start_plan(
                works,
                setup.deployments[m].spec.name,
                {"disk": float(weights[m]), "link": float(nbytes[m, kind])},
                {
                    "disk": prepared.kinds[kind].platform.host.disk_gbps,
                    "link": float(link_gbps[kind]),
                },
                is_cold=bool(is_cold),
            )
        )
    return numbers
