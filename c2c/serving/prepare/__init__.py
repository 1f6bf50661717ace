"""Preparation of a fleet from checked settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from c2c.cost import StepTable
from c2c.errors import SettingError
from c2c.hardware import Slice, link_gbps
from c2c.models import ModelSpec
from c2c.policies import ChunkChoice
from c2c.serving.batches.timers import start_timers
from c2c.serving.memory.new_state import new_serving
from c2c.serving.placement import start_active
from c2c.serving.prepare.adapters import adapter_tables, check_adapters, slot_room_bytes
from c2c.serving.prepare.checks import check, check_memory, check_parts, check_times, refusals
from c2c.serving.prepare.engine_start import start_plan
from c2c.serving.prepare.failures import Failure, Failures
from c2c.serving.prepare.groups import (
    GROUPS,
    AdapterCache,
    Disaggregation,
    Engines,
    ExpertCache,
    PrefixCache,
    Profile,
    Speculation,
)
from c2c.serving.prepare.homes import homes, host_fits, roles
from c2c.serving.prepare.lanes import Copy, Lane, StepLayout, Way
from c2c.serving.prepare.memories import kv_homes
from c2c.serving.prepare.memory import copied, own_memory
from c2c.serving.prepare.parts import FleetPart, SliceKind
from c2c.serving.prepare.prompts_apart import prompts_apart
from c2c.serving.prepare.settings import ServingSetup, SystemSpec
from c2c.serving.prepare.side_by_side import side_by_side
from c2c.serving.prepare.speculation import check_drafts, stored_bytes
from c2c.serving.prepare.tables import (
    DEPLOYMENT_DTYPE,
    activation_bytes,
    chunk_choice,
    cost_tables,
    demand_gbps,
    expert_bytes,
    expert_layers,
    expert_slots,
    first_variant,
    head_bytes,
    holds_windows,
    kept_tables,
    kv_rooms,
    largest_step_chunk,
    layer_bytes,
    most_engines,
    shared_weights,
    switch_s,
)
from c2c.serving.tables.costs import stack_tables
from c2c.serving.tables.state import Fleet, Loop, Rules, Serving

__all__ = [
    "GROUPS",
    "AdapterCache",
    "Copy",
    "Disaggregation",
    "Engines",
    "ExpertCache",
    "Failure",
    "Failures",
    "FleetPart",
    "Lane",
    "PrefixCache",
    "Prepared",
    "Profile",
    "ServingSetup",
    "SliceKind",
    "Speculation",
    "StepLayout",
    "SystemSpec",
    "Way",
    "activation_bytes",
    "chip_places",
    "expert_bytes",
    "expert_layers",
    "most_engines",
    "prepare",
    "prompts_apart",
    "side_by_side",
    "start_plan",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A checked setup, read-only, for any number of runs."""

    setup: ServingSetup
    fleet: Fleet
    rules: Rules
    kinds: tuple[SliceKind, ...]
    architectures: tuple[ModelSpec, ...]
    tables: tuple[tuple[StepTable, ...], ...]  # [arch][kind]
    chunks: tuple[tuple[ChunkChoice, ...], ...]  # [arch][kind]
    chip_of: np.ndarray
    kind_of: np.ndarray
    budget_gbps: np.ndarray  # [chips] of the link, what placement may promise
    link_gbps: np.ndarray  # [chips]
    serves: np.ndarray  # [models, parts] whether a part's chips can serve a model
    expert_slots: np.ndarray  # [arch, kind] experts of all layers that HBM holds
    held: np.ndarray  # [homes] whose weights are in host memory at the start

    @property
    def slice_kinds(self) -> tuple[Slice, ...]:
        """The slices of each kind; see `kinds`."""
        return tuple(kind.slice for kind in self.kinds)

    @property
    def link_capacity_gbps(self) -> float:
        """A chip's link rate, the fastest of unlike chips."""
        return float(self.link_gbps.max())

    def chips_of(self, models: Sequence[int] | None = None) -> NDArray[np.int64]:
        """Return the chips that may serve some models, i8[n]."""
        fleet = self.fleet
        here = slice(None) if models is None else np.isin(fleet.home_model, models)
        return np.unique(fleet.home_chip[here])

    def new_rules(self) -> Rules:
        """Return one run's rules, with fresh memory for policies."""
        return self.rules._replace(own=copied(self.rules.own))

    def new_serving(
        self,
        *,
        slots: int = 1024,
        buffer: int = 65536,
        models: Sequence[int] | None = None,
        active: bool = True,
        rules: Rules | None = None,
    ) -> Serving:
        """Return the state before the first event.

        Args:
          models: active at the start; None: all.
          active: whether already active.
          rules: None: new rules.
        """
        state = new_serving(
            self.fleet,
            self.chip_of,
            self.kind_of,
            link_gbps=self.link_gbps,
            budget_gbps=self.budget_gbps,
            host_bytes=self.setup.weight_memory_bytes,
            host_copies=self.held,
            slots=slots,
            buffer=buffer,
        )
        state.relayout.version[:] = first_variant(self.setup.system, self.tables[0][0])
        if self.setup.system.starts_active:
            state.model.starts[slice(None) if models is None else list(models)] = 1
            state.model.starts[self.fleet.adapters.base != np.arange(len(state.model))] = 0
            state.count[0].to_start = 1
        start_timers(self.rules, state)
        if active and state.count[0].to_start != 0:
            start_active(Loop(self.fleet, rules or self.new_rules(), state))
        return state


def prepare(setup: ServingSetup) -> Prepared:
    """Check the settings and build the tables.

    Raises:
      SettingError: no such MIG layout, too large a catalog or model, or an impossible SLO.
    """
    system, parts = setup.system, setup.parts
    check_memory(setup)
    check_parts(setup)
    check_times(setup)
    check_adapters(setup)
    check_drafts(setup)
    cuts = [chip_places(setup, part) for part in parts]
    kinds, kind_of_cut = _kinds(setup, cuts)
    counts = [part.count for part in parts]
    per_chip = np.repeat([len(cut) for cut in cuts], counts)
    specs = tuple(dict.fromkeys(d.spec for d in setup.deployments))
    role = roles(setup, per_chip.tolist())
    fits = host_fits(setup)
    tables = cost_tables(setup, specs, kinds)
    keep_costs = kept_tables(setup, specs, kinds)
    slices = [kind.slice for kind in kinds]
    largest = largest_step_chunk(system)
    stacked = stack_tables(
        tables, keep_costs, variant=first_variant(system, tables[0][0]),
        holds_windows=holds_windows(system),
    )  # fmt: skip
    kv_capacity, capacity_bytes = kv_rooms(
        specs, slices, system, stacked, slot_room_bytes(setup, specs)
    )
    slots = np.array([[expert_slots(s, k, system, largest) for k in slices] for s in specs])
    demand_of = {
        (d.spec, d.tpot_slo_s): demand_gbps(d, system)
        for d in {(d.spec, d.tpot_slo_s): d for d in setup.deployments}.values()
    }
    demands = [demand_of[d.spec, d.tpot_slo_s] for d in setup.deployments]
    chunks = tuple(
        tuple(
            chunk_choice(setup, *members)
            for members in zip([spec] * len(kinds), kinds, row, strict=True)
        )
        for spec, row in zip(specs, tables, strict=True)
    )
    budgets = [
        kinds[members[0]].link_gbps * system.traits.place.link_headroom for members in kind_of_cut
    ]
    check(setup, kinds, role)
    refused: list[tuple[int, SettingError]] = []
    serves = fits & _may_serve(setup)
    for p, members in enumerate(kind_of_cut):
        here = sorted(set(members))
        for m, error in refusals(
            setup, specs, [slices[k] for k in here], [[row[k] for k in here] for row in tables],
            kv_capacity[:, here], capacity_bytes[:, here], slots[:, here], demands, budgets[p],
        ):  # fmt: skip
            serves[m, p] = False
            refused.append((m, error))
    for m, error in refused:
        if not serves[m].any():
            raise error
    arch_of = np.array([specs.index(d.spec) for d in setup.deployments])
    has_room = np.array(
        [(kv_capacity[:, members] >= 1).any(axis=1)[arch_of] for members in kind_of_cut]
    ).T
    serves &= has_room | ~(serves & has_room).any(axis=1, keepdims=True)
    whole = bool(per_chip.max() == 1)
    where = homes(setup, role if whole else np.zeros(setup.chips, np.int64), serves)

    engines = [most_engines(kind, system) for kind in slices]
    handed = np.full(len(kinds), -1, np.int64)
    if system.layout is not None:
        handed[:] = [system.layout.handed(slices, k) for k in slices]
    home_chip = np.array([c for h in where.chips for c in h], np.int64)
    deployment = np.zeros(len(setup.deployments), DEPLOYMENT_DTYPE).view(np.recarray)
    deployment.arch = arch_of
    deployment.demand_gbps = demands
    deployment.max_context = [d.spec.max_position for d in setup.deployments]
    for name in ("ttft_slo_s", "tpot_slo_s", "priority", "deadline_s"):
        deployment[name] = [getattr(d, name) for d in setup.deployments]
    fleet = Fleet(
        deployment=deployment,
        home_first=_starts([len(h) for h in where.chips]),
        home_chip=home_chip,
        home_model=np.repeat(np.arange(len(where.chips)), [len(h) for h in where.chips]),
        chip_first=_starts(np.bincount(home_chip, minlength=setup.chips)),
        chip_home=np.argsort(home_chip, kind="stable"),
        weight_bytes=stored_bytes(setup),
        kv_capacity=np.maximum(kv_capacity, 0).astype(np.int64),
        kv_capacity_bytes=capacity_bytes,
        chunk=np.array([[c.tokens for c in row] for row in chunks], np.int64),
        layers=np.array([s.layers for s in specs], np.int64),
        layer_bytes=np.array([layer_bytes(s) for s in specs]),
        head_bytes=np.array([head_bytes(s) for s in specs]),
        gives_up=system.traits.option.acts
        or any(d.deadline_s < math.inf for d in setup.deployments),
        max_batch=system.max_batch,
        residents=max(engines),
        most_engines=np.array(engines, np.int64),
        instances=int(per_chip.sum()) * max(engines),
        engine_bytes=float(system.engines.bytes),
        shared_weight_bytes=shared_weights(specs, slices, system),
        kv_host_bytes=float(system.engines.kv_host_bytes),
        folds_turns=system.load_traits.swaps_weights and whole,
        hands_to=handed,
        takes_new=np.array([int(k not in handed) for k in range(len(kinds))], np.int64),
        opens_all=system.layout is not None,
        by_turns=system.layout is not None and system.layout.by_turns,
        folds_experts=system.expert_cache.misses == "table",
        role=role.astype(np.int64),
        hands_directly=bool(role.any()) and system.engines.kv_host_bytes == 0.0,
        sure_bytes=_sure_bytes(system, engines, capacity_bytes),
        switch_s=np.array([[switch_s(s, k, system) for k in kinds] for s in specs]),
        caches_prefixes=system.prefix_cache.is_on,
        costs=stacked,
        kv=kv_homes(system.layout, specs, slices),
        adapters=adapter_tables(setup, specs, kinds, tables),
    )
    policies = system.policies
    rules = Rules(
        system=policies,
        own=own_memory(policies, fleet),
        seed=setup.seed,
        traits=policies.traits,
    )
    return Prepared(
        setup=setup,
        fleet=fleet,
        rules=rules,
        kinds=kinds,
        architectures=specs,
        tables=tables,
        chunks=chunks,
        chip_of=np.repeat(np.arange(setup.chips), per_chip),
        kind_of=_of_chips(kind_of_cut, counts),
        budget_gbps=np.repeat(budgets, counts),
        link_gbps=np.repeat([kinds[members[0]].link_gbps for members in kind_of_cut], counts),
        serves=serves,
        expert_slots=slots,
        held=np.array([h for row in where.held for h in row]),
    )


def _may_serve(setup: ServingSetup) -> np.ndarray:
    """Return a part's models; b1[models, parts]."""
    return np.array([
        [part.nodes is None or d.name in part.nodes.models for part in setup.parts]
        for d in setup.deployments
    ])  # fmt: skip


def chip_places(setup: ServingSetup, part: FleetPart) -> tuple[Slice, ...]:
    """Return devices on each chip of a part."""
    layout = setup.system.layout
    if layout is None:
        return part.slices
    numbers = range(len(layout.lanes)) if part.nodes is None else part.nodes.lanes
    return tuple(layout.lanes[k].place for k in numbers)


def _kinds(
    setup: ServingSetup, cuts: Sequence[Sequence[Slice]]
) -> tuple[tuple[SliceKind, ...], list[list[int]]]:
    kinds: list[SliceKind] = []
    cut_kinds = []
    for part, cut in zip(setup.parts, cuts, strict=True):
        shared_gbps = link_gbps(part.platform.link, setup.link_variant)
        of_slice: dict[Slice, int] = {}
        for one in dict.fromkeys(cut):
            kind = SliceKind(
                slice=one, platform=part.platform, constants=part.constants,
                link_gbps=shared_gbps, together=len(cut),
            )  # fmt: skip
            if kind not in kinds:
                kinds.append(kind)
            of_slice[one] = kinds.index(kind)
        cut_kinds.append([of_slice[one] for one in cut])
    return tuple(kinds), cut_kinds


def _of_chips(of_part: Sequence[Any], counts: Sequence[int]) -> NDArray[Any]:
    return np.concatenate([np.tile(one, n) for one, n in zip(of_part, counts, strict=True)])


def _sure_bytes(
    system: SystemSpec, engines: Sequence[int], capacity_bytes: np.ndarray
) -> np.ndarray:
    least = np.where(capacity_bytes > 0, capacity_bytes, np.inf).min(axis=0)
    return np.asarray(least - (np.array(engines) - 1) * system.engines.bytes)


def _starts(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
