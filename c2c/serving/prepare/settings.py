"""Settings of serving."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Annotated, Any, Literal

import numpy as np

from c2c.cost import Constants, Routing, StepTimes, step_times
from c2c.errors import SettingError, refuse
from c2c.hardware import MigConfig, Platform
from c2c.models import Deployment
from c2c.policies import (
    DECISIONS,
    PREPARATION,
    KvPressure,
    LoadTraits,
    Reserved,
    Static,
    System,
    Traits,
    check_policy,
    make_policy,
    policy_name,
    traits_of,
    weights_in,
)
from c2c.ranges import Count, FromZero, Index, OneOf, check_fields
from c2c.serving.prepare.engine_start import start_works
from c2c.serving.prepare.failures import Failures
from c2c.serving.prepare.groups import (
    GROUPS,
    AdapterCache,
    Disaggregation,
    Engines,
    ExpertCache,
    PrefixCache,
    Profile,
    Speculation,
    as_group,
)
from c2c.serving.prepare.lanes import StepLayout
from c2c.serving.prepare.parts import FleetPart
from c2c.workloads import Router

__all__ = ["ServingSetup", "SystemSpec"]

_DEFAULTS = System()._asdict() | dict(PREPARATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSpec:
    """A serving system: one policy for each decision, and further settings.

    Those before `start` are policies, or settings for `c2c.policies.make_policy`.

    Attributes:
      route: choice of the active instance for a request.
      scale: whether a busy model gets another instance.
      place: choice of the slice for an inactive model.
      evict: choice of the idle model to evict.
      preempt: when to drain a busy slice for a waiting model.
      admit: admission of requests to a batch.
      turn: a slice's next engine, and steps that wait for the link.
      chunk: prompt tokens of a step.
      alpha: split of HybridGEMM's columns.
      vary: choice of the step's variant, if `layout` has several.
      keep: streamed weights to keep in HBM.
      experts: eviction order of a mixture's experts.
      prefetch: experts to fetch ahead of their layer.
      order: order of waiting requests of equal priority.
      batch: scheduler of an instance's batch.
      option: mechanism that acts on requests, after steps and at times of its own.
      load: path of weights to a slice.
      start: start of an engine as a graph of works (`c2c.serving.Work`) or a mechanism; () is one
        work by `load` and the calibration.
      launch_s: host seconds to launch a decode step's kernels one by one, by a model's spec; {}:
        one graph.
      step_times: seconds of a model's steps in place of modelled ones (`c2c.cost.StepTimes`), by
        its spec.
      layout: instance over several devices (`c2c.serving.StepLayout` or a mechanism); None: one
        slice.
      engines: engines of a slice, which take turns.
      disaggregation: separate devices for prompts and decodes.
      expert_cache: cache of experts in HBM.
      prefix_cache: KV-cache blocks for later prompts.
      adapter_cache: adapters in HBM.
      speculation: drafted tokens that the model verifies.
      profile: table from which `chunk` chooses.
      max_batch: most requests in a batch.
      on_oom: if a model's weights fit no slice: refuse the run, or fail the model's requests.
      one_each: whether every model has a permanent slice.
      hbm_reserve_bytes: bytes for CUDA context and workspace on every slice.
      starts_active: whether models are active at the start, while slices and the link's budget last
        (C2CServe section 6.2).
      check_slo: whether to refuse targets that no slice can meet even when alone.
    """

    name: str
    route: Any = field(default=_DEFAULTS["route"])
    scale: Any = field(default=_DEFAULTS["scale"])
    place: Any = field(default=_DEFAULTS["place"])
    evict: Any = field(default=_DEFAULTS["evict"])
    preempt: Any = field(default=_DEFAULTS["preempt"])
    admit: Any = field(default=_DEFAULTS["admit"])
    turn: Any = field(default=_DEFAULTS["turn"])
    chunk: Any = field(default=_DEFAULTS["chunk"])
    alpha: Any = field(default=_DEFAULTS["alpha"])
    vary: Any = field(default=_DEFAULTS["vary"])
    keep: Any = field(default=_DEFAULTS["keep"])
    experts: Any = field(default=_DEFAULTS["experts"])
    prefetch: Any = field(default=_DEFAULTS["prefetch"])
    order: Any = field(default=_DEFAULTS["order"])
    batch: Any = field(default=_DEFAULTS["batch"])
    option: Any = field(default=_DEFAULTS["option"])
    load: Any = field(default=_DEFAULTS["load"])
    start: Any = ()
    launch_s: Mapping[str, FromZero] = field(default_factory=dict)
    step_times: Mapping[str, Any] = field(default_factory=dict)
    layout: Any = None
    engines: Engines = field(default_factory=Engines)
    disaggregation: Disaggregation = field(default_factory=Disaggregation)
    expert_cache: ExpertCache = field(default_factory=ExpertCache)
    prefix_cache: PrefixCache = field(default_factory=PrefixCache)
    adapter_cache: AdapterCache = field(default_factory=AdapterCache)
    speculation: Speculation = field(default_factory=Speculation)
    profile: Profile = field(default_factory=Profile)
    max_batch: Count = 128
    on_oom: Annotated[str, OneOf("refuse", "fail")] = "refuse"
    one_each: bool = False
    hbm_reserve_bytes: FromZero = 1.0e9
    starts_active: bool = False
    check_slo: bool = True

    def __post_init__(self) -> None:
        for setting in DECISIONS:
            value = getattr(self, setting)
            if isinstance(value, Mapping):
                object.__setattr__(self, setting, make_policy(setting, value))
            else:
                check_policy(setting, value)
        for name in GROUPS:
            object.__setattr__(self, name, as_group(name, getattr(self, name)))
        check_fields(self, "system")
        times = {
            name: one
            if isinstance(one, StepTimes)
            else step_times(one, f"system.step_times.{name}")
            for name, one in self.step_times.items()
        }
        object.__setattr__(self, "step_times", times)
        copied = weights_in(self.load) == "hbm"
        object.__setattr__(self, "start", start_works(self.start, copied))
        refuse(
            (self.start and self.load.start_s is not None, "system.load.start_s",
             self.load.start_s, "null where system.start says how long"),
            (self.start and self.load_traits.swaps_weights, "system.start", "a graph",
             "none where engines swap weights"),
            (self.traits.keep.keeps_weights and weights_in(self.load) != "host", "system.keep",
             self.keep, "nothing_kept where weights are not streamed"),
        )  # fmt: skip
        for policy in self.policies:
            if hasattr(policy, "check_beside"):  # it works with some others only
                policy.check_beside(self)
        self._check_engines()
        self._check_batch()
        self._check_experts(copied)
        if self.layout is not None:
            self._check_layout(copied)

    def _check_layout(self, copied: bool) -> None:
        if not isinstance(self.layout, StepLayout):
            raise SettingError("system.layout", self.layout, "a mechanism, a StepLayout or null")
        there = "Prompts go to lanes that are there from the start."
        opens = all(lane.hands_to is None for lane in self.layout.lanes)
        placed = "A layout says where weights are."
        load = "stream" if self.layout.streams else "resident"
        is_load = weights_in(self.load) == "host" if self.layout.streams else copied
        for setting, works, rule, why in (
            (
                "load",
                is_load and not self.load_traits.swaps_weights,
                load,
                "Its steps read weights from host memory." if self.layout.streams else placed,
            ),
            ("start", not self.start or opens, "no graph", there),
            ("launch_s", not self.launch_s, "{}", "Steps of a layout are launched as graphs."),
            ("step_times", not self.step_times, "{}", "Its works have times of their own."),
            (
                "engines.residents",
                self.engines.residents == 1,
                "1",
                "A lane has one engine at a time.",
            ),
            ("keep", not self.traits.keep.keeps_weights, "nothing_kept", placed),
            ("experts", not self.traits.experts.caches_experts, "all_experts", placed),
            ("starts_active", self.starts_active or opens, "true", there),
            (
                "prefix_cache",
                not self.prefix_cache.is_on,
                "off",
                "The homes of KV caches in a layout are not blocks that requests share.",
            ),
        ):
            if not works:
                value = attrgetter(setting)(self)
                raise SettingError(
                    f"system.{setting}",
                    [work.name for work in value] if setting == "start" else value,
                    f"{rule} with system.layout={self.layout.name}",
                    why,
                )

    def _check_batch(self) -> None:
        name, traits = policy_name(type(self.batch)), self.traits.batch
        refuse(
            (traits.is_default and not isinstance(self.batch, Reserved), "system.batch", name,
             "a policy without the trait is_default: the loop would call reserved in its place"),
        )  # fmt: skip
        if not traits.grows:
            return
        refuse(
            (self.layout is not None, "system.batch", name, "reserved or prompts_alone with "
             "system.layout, whose lanes share memories by whole KV caches"),
            (self.disaggregation.prompt_share > 0.0, "system.batch", name,
             "reserved or prompts_alone with system.disaggregation, which hands over whole caches"),
            (not self.traits.admit.joins_decodes, "system.admit", policy_name(type(self.admit)),
             f"reserve_all or within_quota with system.batch={name}, which lets requests join "
             "decodes"),
        )  # fmt: skip

    def _check_engines(self) -> None:
        engines, where, traits = self.engines, "system.engines", self.traits
        several, floor = engines.residents > 1, traits.admit.kv_floor
        refuse(
            (engines.kv_host_bytes > 0.0 and (self.start or not several), f"{where}.kv_host_bytes",
             engines.kv_host_bytes, "0 where a slice has one engine, or system.start is a graph"),
            (floor * engines.residents > 1.0, "system.admit.floor", floor,
             f"at most {1.0 / engines.residents:.3g}, with residents={engines.residents} on a "
             "slice"),
            (several and not traits.turn.takes_turns, f"{where}.residents", engines.residents,
             f"1 with system.turn={policy_name(type(self.turn))}, where no engines take turns"),
            (self.shares_hbm and not isinstance(self.place, KvPressure), "system.place",
             policy_name(type(self.place)), "kv_pressure where several engines of a slice have all "
             "their weights in its HBM"),
            (self.shares_hbm and self.disaggregation.prompt_share > 0.0,
             "system.disaggregation.prompt_share", self.disaggregation.prompt_share,
             "0 where several engines of a slice have all their weights in its HBM"),
            (self.shares_hbm and engines.kv_host_bytes > 0.0, f"{where}.kv_host_bytes",
             engines.kv_host_bytes, "0 where several engines of a slice have all their weights in "
             "its HBM"),
            (several and traits.experts.caches_experts, f"{where}.residents", engines.residents,
             "1 where system.experts caches some"),
        )  # fmt: skip

    def _check_experts(self, copied: bool) -> None:
        caches, misses = self.traits.experts.caches_experts, "system.expert_cache.misses"
        has_table = self.expert_cache.misses == "table"
        refuse(
            (has_table and self.disaggregation.prompt_share > 0.0, misses, "table",
             "exact where system.disaggregation.prompt_share is above 0"),
            (has_table and self.prefix_cache.is_on, misses, "table",
             "exact with system.prefix_cache: the table's prompts are computed whole"),
            (has_table and (not caches or self.max_batch > 1), misses, "table",
             "exact where system.experts caches none, or system.max_batch is above 1"),
            (caches and not copied, "system.load.policy", policy_name(type(self.load)),
             "resident where system.experts caches some in HBM"),
            (caches and self.starts_active, "system.starts_active", True,
             "false where system.experts caches some: a start fills the cache"),
            (not caches and self.traits.prefetch.rows > 0, "system.prefetch.policy",
             policy_name(type(self.prefetch)), "no_prefetch where system.experts is all_experts"),
        )  # fmt: skip

    @property
    def policies(self) -> System:
        """Policies that the serving loop calls."""
        return System(*(getattr(self, name) for name in System._fields))

    @property
    def traits(self) -> Traits:
        """Constant traits of the policies."""
        return self.policies.traits

    @property
    def shares_hbm(self) -> bool:
        """True if several engines' weights are in a slice's HBM."""
        copied = weights_in(self.load) == "hbm" and not self.load_traits.swaps_weights
        return copied and self.engines.residents > 1

    @property
    def load_traits(self) -> LoadTraits:
        """Constant traits of the `load` policy."""
        result: LoadTraits = traits_of(LoadTraits, self.load)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSetup:
    """Setup of serving: hardware, models, system, constants.

    `platform`, `mig`, `superchips` and `constants` are the fleet's first part.
    """

    platform: Platform
    mig: MigConfig | str  # a layout, or its name
    superchips: Count
    link_variant: Literal["datasheet", "measured"]
    deployments: tuple[Deployment, ...]
    system: SystemSpec
    constants: Constants
    beside: tuple[FleetPart, ...] = ()  # further parts, whose chips are numbered behind
    routing: Routing = field(default_factory=Routing)
    router: Router = field(default_factory=Router)
    weights_start: Literal["host", "disk"] = "host"
    cells: int = 1  # parts of the fleet that share no model
    seed: Index = 0
    failures: Failures = field(default_factory=Failures)

    def __post_init__(self) -> None:
        check_fields(self)
        if not 1 <= self.cells <= self.chips:
            chips = "the number of chips, " if self.beside else "superchips="
            raise SettingError("cells", self.cells, f"1 to {chips}{self.chips}")
        if not self.deployments:
            raise SettingError("catalog", [], "at least one model")
        self._check_roles()
        self._check_failures()
        vary, how = self.system.vary, self.system.traits.vary
        late = min(d.deadline_s for d in self.deployments)
        timed, name = how.timer_s < math.inf, policy_name(type(vary))
        refuse(
            (self.system.layout is None and (how.follows_waits or timed), "system.vary.policy",
             name, "as_alpha where no system.layout gives a step variants"),
            (timed and not how.follows_waits, "system.vary.policy", name,
             "a policy that chooses variants (follows_waits) where it has timers"),
            (late < math.inf and self.system.disaggregation.prompt_share > 0.0, "deadline_s", late,
             "none with system.disaggregation.prompt_share: a KV cache on its way is not given up"),
        )  # fmt: skip
        if self.system.layout is not None:
            self._check_lanes(self.system.layout)

    def _check_failures(self) -> None:
        if not self.failures.is_on:
            return
        for is_used, why in (
            (self.system.layout is not None, "system.layout"),
            (self.system.one_each, "system.one_each"),
            (self.system.disaggregation.prompt_share > 0.0, "system.disaggregation.prompt_share"),
            (self.system.expert_cache.misses == "table", "system.expert_cache.misses=table"),
        ):
            if is_used:
                raise SettingError("failures", "on", f"none with {why}")
        for k, event in enumerate(self.failures.events):
            if not 0 <= event.chip < self.chips:
                where = f"failures.events[{k}].chip"
                raise SettingError(where, event.chip, f"from 0 to {self.chips - 1}")

    def _check_lanes(self, layout: StepLayout) -> None:
        if self.weights_start != "host":
            raise SettingError(
                "weights_start",
                self.weights_start,
                f"host, as the lanes of {layout.name} are open from the start",
            )
        if self.system.start and self.system.starts_active:
            allowed = "false where lanes have a start, which none would need"
            raise SettingError("system.starts_active", True, allowed)
        kinds = layout.nodes
        if kinds and self.superchips < len(kinds):
            models = [" and ".join(kind.models) for kind in kinds]
            raise SettingError(
                "superchips", self.superchips, f"at least {len(kinds)}, a node for each of "
                f"{', '.join(models)}",
            )  # fmt: skip
        for lane in layout.lanes:
            here = [d.name for d in self.deployments if d.spec.name in lane.steps]
            is_one = self.system.starts_active or lane.copies or lane.hands_to
            if len(here) > 1 and is_one and not kinds:
                raise SettingError(
                    "catalog", here, f"one model for lane {lane.place.name}",
                    "Several models of a lane take turns with system.starts_active=false.",
                )  # fmt: skip
        stays = isinstance(self.system.alpha, Static) or self.system.traits.vary.follows_waits
        if not stays and any(lane.copies for lane in layout.lanes):
            name = policy_name(type(self.system.alpha))
            allowed = "static where variants need copies and system.vary chooses none"
            raise SettingError("system.alpha.policy", name, allowed)

    @property
    def parts(self) -> tuple[FleetPart, ...]:
        """Parts of the fleet, in the order of their chips."""
        first = FleetPart(
            platform=self.platform, mig=self.mig, count=self.superchips, constants=self.constants
        )
        layout = self.system.layout
        if layout is None or not layout.nodes:
            return (first, *self.beside)
        n, kinds = self.superchips, layout.nodes
        counts = [n // len(kinds) + (k < n % len(kinds)) for k in range(len(kinds))]
        return tuple(
            replace(first, count=count, nodes=kind)
            for kind, count in zip(kinds, counts, strict=True)
        )

    @property
    def chips(self) -> int:
        """Number of chips of all parts."""
        return self.superchips + sum(part.count for part in self.beside)

    @property
    def unit_of(self) -> np.ndarray:
        """Failure unit of each chip: itself, or its host; i8[chips]."""
        size = self.failures.host_chips
        if size == 0:
            return np.arange(self.chips)
        numbers, first = [], 0
        for part in self.parts:
            numbers.append(first + np.arange(part.count) // size)
            first = int(numbers[-1][-1]) + 1
        return np.concatenate(numbers)

    @property
    def fleet_name(self) -> str:
        """Description of chips and layouts."""
        if self.system.layout is not None:
            gpus = Counter(platform.name for _, platform in self.system.layout.gpus)
            named = " + ".join(f"{count} {name}" for name, count in gpus.items())
            return f"{self.superchips} x {self.system.layout.name}" + (
                f" ({named})" if gpus else ""
            )
        return " + ".join(f"{p.count} x {p.chip_name}, mig {p.layout}" for p in self.parts)

    def _check_roles(self) -> None:
        if self.system.layout is not None and self.system.disaggregation.prompt_share > 0.0:
            share = self.system.disaggregation.prompt_share
            raise SettingError(
                "system.disaggregation.prompt_share", share, "0 with system.layout",
                "The layout assigns devices to prompts.",
            )  # fmt: skip

    @property
    def weight_memory_bytes(self) -> np.ndarray:
        """Host memory of each chip for weights; f8[chips]."""
        kv_bytes = self.system.engines.kv_host_bytes + self.system.prefix_cache.host_bytes
        return np.repeat(
            [float(part.platform.host.memory_bytes) - kv_bytes for part in self.parts],
            [part.count for part in self.parts],
        )
