"""What a serving setup is made of, each setting checked where it stands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from c2c.cost import Constants, Routing
from c2c.errors import SettingError
from c2c.hardware import MigConfig, Platform, Slice, slices
from c2c.models import Deployment
from c2c.policies import (
    DECISIONS,
    PREPARATION,
    Static,
    System,
    caches_experts,
    check_policy,
    follows_waits,
    keep_alive_s,
    keeps_weights,
    kv_floor,
    make_policy,
    move_s,
    policy_name,
    step_parts,
    swaps_weights,
    takes_turns,
    timer_s,
    tracing,
    weights_in,
)
from c2c.serving.prepare.lanes import StepLayout
from c2c.serving.prepare.starting import start_works
from c2c.workloads import Router

__all__ = ["LayoutChange", "ServingSetup", "SystemSpec"]

_DEFAULTS = System()._asdict() | dict(PREPARATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSpec:
    """A serving system: its policies, and what they do not decide.

    Each of the first fifteen is a policy (`c2c.policies`), or a mapping of settings that
    `c2c.policies.make_policy` makes one of.

    Attributes:
      route: which active instance takes a request.
      scale: whether a busy model gets another instance.
      place: which slice an inactive model goes to.
      evict: which idle model gives way.
      preempt: when a busy slice is drained for a model that waits.
      admit: which waiting requests join a batch.
      turn: which engine of a slice computes next, and what waits for the link.
      chunk: how many prompt tokens a step takes.
      alpha: how HybridGEMM's columns are split.
      vary: which variant of its step an instance takes, where `layout` gives several.
      keep: which streamed weights stay in HBM.
      experts: which experts of a mixture give way in HBM, where it holds some only.
      prefetch: which are fetched ahead of their layer.
      step: whether alpha may change within a step.
      load: how weights get to a slice.
      start: an engine's start as a graph of works (`c2c.serving.Work`, or a mapping each); ()
        is one work as `load` and the calibration say. In settings also a mechanism that makes it.
      layout: how an instance lies over several devices (`c2c.serving.StepLayout`); None: its place
        is a slice, and its step one work. In settings a mechanism that makes it.
      chunk_candidates: sizes in the profiling table, C2CServe section 6.3.
      profile_prompt_tokens: prompt that the table is profiled with.
      profile_ttft_share: of the TTFT target that prefill may take; the rest is left for queueing.
      max_batch: most requests in an instance's batch.
      residents: engines a slice may hold.
      engine_bytes: HBM of each engine beyond the first.
      engine_share: of a slice's HBM that engines may take; a slice holds as many as that has room
        for, at least one and at most `residents`; inf: as many as `residents` says.
      kv_host_bytes: of a chip's host memory for KV caches of engines that wait for their turn,
        which go there when another engine needs the room; 0: KV caches stay in HBM.
      prompt_share: of the devices, for prompts only; the others decode what these hand over, with
        its KV cache, through host memory where `kv_host_bytes` gives some, else from device to
        device. 0, or a single device: each does both. Of each chip's slices where it has several.
      hand_over_gbps: at which a KV cache goes from one chip to another; between slices of a chip
        the slower one's own share of the link decides.
      turn_s: what changing the engine between two steps takes.
      expert_share: of the HBM beside dense weights and activations, for cached experts; the rest is
        for KV caches. 1 leaves them what does not make an expert.
      expert_miss: a missing expert is copied into the cache before its layer goes on (copy), or the
        kernel reads it from host memory and the cache stays as it is (stream).
      expert_host_s: the host's work for an expert, which copies hide and which hides copies.
      expert_host: it is done for each expert that a layer runs (use), or for each that it copies
        from host memory (fetch).
      expert_misses: what a step lacks is found by walking its layers (exact), or taken from a table
        that the exact walk makes before the start (table), for long traces: one request at a time.
      tick_s: starts of engines begin at whole multiples of it; 0: at once.
      on_oom: a model whose weights fit no slice stops the run before it starts (refuse), or its
        requests fail (fail).
      one_each: every model has a slice for good; more models than slices are refused.
      hbm_reserve_bytes: CUDA context and engine workspace on every slice.
      starts_active: whether models are active at the start, in the order of the catalog, as far as
        free slices and the link's budget go (C2CServe section 6.2).
      check_slo: refuse targets that no slice can meet even when alone.
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
    step: Any = field(default=_DEFAULTS["step"])
    load: Any = field(default=_DEFAULTS["load"])
    start: Any = ()
    layout: Any = None
    chunk_candidates: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096)
    profile_prompt_tokens: int = 1024
    profile_ttft_share: float = 1.0
    max_batch: int = 128
    residents: int = 1
    engine_bytes: float = 0.5e9
    engine_share: float = math.inf
    kv_host_bytes: float = 0.0
    prompt_share: float = 0.0
    hand_over_gbps: float = 50.0
    turn_s: float = 0.0
    expert_share: float = 0.9
    expert_miss: str = "copy"
    expert_host_s: float = 0.0
    expert_host: str = "use"
    expert_misses: str = "exact"
    tick_s: float = 0.0
    on_oom: str = "refuse"
    one_each: bool = False
    hbm_reserve_bytes: float = 1.0e9
    starts_active: bool = False
    check_slo: bool = True

    def __post_init__(self) -> None:
        for setting in DECISIONS:
            given = getattr(self, setting)
            if isinstance(given, Mapping):
                object.__setattr__(self, setting, make_policy(setting, given))
            else:
                check_policy(setting, given)
        object.__setattr__(self, "chunk_candidates", tuple(self.chunk_candidates))
        where = "system."
        for name in ("profile_prompt_tokens", "max_batch", "residents"):
            if getattr(self, name) < 1:
                raise SettingError(where + name, getattr(self, name), "a whole number above 0")
        if not self.chunk_candidates or min(self.chunk_candidates) < 1:
            raise SettingError(
                where + "chunk_candidates", self.chunk_candidates, "whole numbers above 0"
            )
        if not 0.0 < self.profile_ttft_share <= 1.0:
            raise SettingError(
                where + "profile_ttft_share", self.profile_ttft_share, "a number in (0, 1]"
            )
        copied = weights_in(self.load) == "hbm"
        object.__setattr__(self, "start", start_works(self.start, copied))
        if self.start and self.load.start_s is not None:
            raise SettingError(
                where + "load.start_s", self.load.start_s, "null where system.start says how long"
            )
        self._check_amounts(where)
        if self.on_oom not in ("refuse", "fail"):
            raise SettingError(where + "on_oom", self.on_oom, "refuse or fail")
        if not self.tick_s < math.inf:
            raise SettingError(where + "tick_s", self.tick_s, "seconds")
        if self.start and self.tick_s > 0.0:
            raise SettingError(where + "tick_s", self.tick_s, "0 where system.start is a graph")
        if self.start and swaps_weights(self.load):
            raise SettingError(where + "start", "a graph", "none where engines swap weights")
        self._check_residents(copied)
        self._check_roles()
        self._check_experts(copied)
        if self.layout is not None:
            self._check_layout(copied)

    def _check_layout(self, copied: bool) -> None:
        if not isinstance(self.layout, StepLayout):
            raise SettingError("system.layout", self.layout, "a mechanism, a StepLayout or null")
        for setting, works, wanted in (
            ("load", copied and not swaps_weights(self.load), "resident"),
            ("start", not self.start, "no graph"),
            ("residents", self.residents == 1, "1"),
            ("keep", not keeps_weights(self.keep), "nothing_kept"),
            ("experts", not caches_experts(self.experts), "all_experts"),
            ("step", step_parts(self.step, 2) == 1, "whole"),
            ("starts_active", self.starts_active, "true"),
            ("scale", keep_alive_s(self.scale) == math.inf, "a policy without keep-alive"),
        ):
            if not works:
                given = getattr(self, setting)
                raise SettingError(
                    f"system.{setting}",
                    [work.name for work in given] if setting == "start" else given,
                    f"{wanted} with system.layout={self.layout.name}",
                )

    def _check_residents(self, copied: bool) -> None:
        if move_s(self.preempt, 0, 0.0, True) < math.inf and takes_turns(self.turn):
            raise SettingError(
                "system.preempt.policy",
                policy_name(type(self.preempt)),
                "one that moves no engine where engines of a slice take turns",
            )
        if kv_floor(self.admit) * self.residents > 1.0:
            raise SettingError(
                "system.admit.floor",
                kv_floor(self.admit),
                f"at most {1.0 / self.residents:.3g}, with residents={self.residents} on a slice",
            )
        if self.residents > 1 and copied and not swaps_weights(self.load):
            raise SettingError(
                "system.residents",
                self.residents,
                "1 where each engine's weights are copied into HBM at its start",
            )
        if self.residents > 1 and not takes_turns(self.turn):
            raise SettingError(
                "system.residents",
                self.residents,
                f"1 with system.turn={policy_name(type(self.turn))}, where no engines take turns",
            )

    def _check_roles(self) -> None:
        if not 0.0 <= self.prompt_share < 1.0:
            raise SettingError("system.prompt_share", self.prompt_share, "a share in [0, 1)")
        if self.prompt_share > 0.0 and self.expert_misses == "table":
            raise SettingError(
                "system.expert_misses", "table", "exact where system.prompt_share is above 0"
            )
        if not 0.0 < self.hand_over_gbps < math.inf:
            raise SettingError("system.hand_over_gbps", self.hand_over_gbps, "GB/s above 0")

    def _check_amounts(self, where: str) -> None:
        names = ("engine_bytes", "kv_host_bytes", "turn_s", "hbm_reserve_bytes")
        for name in (*names, "expert_host_s", "tick_s"):
            if not getattr(self, name) >= 0.0:
                raise SettingError(where + name, getattr(self, name), "at least 0")
        if not (0.0 < self.engine_share <= 1.0 or self.engine_share == math.inf):
            raise SettingError(
                where + "engine_share", self.engine_share, "a number in (0, 1], or inf"
            )
        if self.kv_host_bytes > 0.0 and (self.start or self.residents == 1):
            raise SettingError(
                where + "kv_host_bytes",
                self.kv_host_bytes,
                "0 where a slice has one engine, or system.start is a graph",
            )

    def _check_experts(self, copied: bool) -> None:
        if not 0.0 < self.expert_share <= 1.0:
            raise SettingError("system.expert_share", self.expert_share, "a number in (0, 1]")
        if self.expert_miss not in ("copy", "stream"):
            raise SettingError("system.expert_miss", self.expert_miss, "copy or stream")
        if self.expert_host not in ("use", "fetch"):
            raise SettingError("system.expert_host", self.expert_host, "use or fetch")
        if self.expert_misses not in ("exact", "table"):
            raise SettingError("system.expert_misses", self.expert_misses, "exact or table")
        if self.expert_misses == "table" and (
            not caches_experts(self.experts) or self.max_batch > 1
        ):
            raise SettingError(
                "system.expert_misses",
                "table",
                "exact where system.experts caches none, or system.max_batch is above 1",
            )
        if caches_experts(self.experts):
            if not copied:
                raise SettingError(
                    "system.load.policy",
                    policy_name(type(self.load)),
                    "resident where system.experts caches some in HBM",
                )
            if self.starts_active:
                raise SettingError(
                    "system.starts_active",
                    self.starts_active,
                    "false where system.experts caches some: a start fills the cache",
                )
        elif tracing(self.prefetch).rows > 0:
            raise SettingError(
                "system.prefetch.policy",
                policy_name(type(self.prefetch)),
                "no_prefetch where system.experts is all_experts",
            )

    @property
    def policies(self) -> System:
        """The policies that the serving loop asks."""
        return System(*(getattr(self, name) for name in System._fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChange:
    """A change of every chip's MIG layout during a run.

    Attributes:
      at_s: when the first chip begins.
      mig: the layout from then on, or its name in `conf/mig`.
      drain: requests that compute on a slice that goes end there; without it they are set aside at
        the next step boundary and computed again elsewhere.
      stagger_s: each further chip begins so much later.
    """

    at_s: float
    mig: MigConfig | str
    drain: bool = True
    stagger_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("at_s", "stagger_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise SettingError(f"mig_changes.{name}", getattr(self, name), "seconds, from 0 on")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSetup:
    """Everything that is served on: hardware, models, system, constants."""

    platform: Platform
    mig: MigConfig | str  # a layout, or its name in `conf/mig`
    superchips: int
    link_variant: Literal["datasheet", "measured"]
    deployments: tuple[Deployment, ...]
    system: SystemSpec
    constants: Constants
    routing: Routing = field(default_factory=Routing)
    router: Router = field(default_factory=Router)
    weights_start: Literal["host", "disk"] = "host"
    cells: int = 1  # parts of the fleet that share no model
    seed: int = 0
    changes: tuple[LayoutChange, ...] = ()  # in order of time

    def __post_init__(self) -> None:
        if self.superchips < 1:
            raise SettingError("superchips", self.superchips, "a whole number above 0")
        if not 1 <= self.cells <= self.superchips:
            raise SettingError("cells", self.cells, f"1 to superchips={self.superchips}")
        if not self.deployments:
            raise SettingError("catalog", [], "at least one model")
        if self.weights_start not in ("host", "disk"):
            raise SettingError("weights_start", self.weights_start, "'host' or 'disk'")
        if self.seed < 0:
            raise SettingError("seed", self.seed, "a whole number, at least 0")
        self._check_roles_and_moves()
        for k, (one, following) in enumerate(pairwise(self.changes)):
            if not one.at_s < following.at_s:
                where = f"mig_changes[{k + 1}].at_s"
                raise SettingError(where, following.at_s, f"later than the one before, {one.at_s}")
        if self.changes and self.system.one_each:
            raise SettingError("mig_changes", len(self.changes), "none with system.one_each")
        if self.changes and self.system.layout is not None:
            raise SettingError("mig_changes", len(self.changes), "none over a pair of GPUs")
        if self.changes and self.system.expert_misses == "table":
            raise SettingError("system.expert_misses", "table", "exact where the layout changes")
        vary = self.system.vary
        if self.system.layout is None and (follows_waits(vary) or timer_s(vary) < math.inf):
            raise SettingError(
                "system.vary.policy",
                policy_name(type(vary)),
                "as_alpha where no system.layout gives a step variants",
            )
        if timer_s(vary) < math.inf and not follows_waits(vary):
            raise SettingError(
                "system.vary.policy",
                policy_name(type(vary)),
                "a policy that chooses variants (follows_waits) where it has timers",
            )
        if self.system.layout is not None:
            self._check_lanes(self.system.layout)

    def _check_lanes(self, layout: StepLayout) -> None:
        if self.weights_start != "host":
            raise SettingError(
                "weights_start",
                self.weights_start,
                f"host, as the lanes of {layout.name} are open from the start",
            )
        for lane in layout.lanes:
            here = [d.name for d in self.deployments if d.spec.name in lane.steps]
            if len(here) > 1:
                raise SettingError("catalog", here, f"one model for lane {lane.place.name}")
        vary = self.system.vary
        stays = isinstance(self.system.alpha, Static) or follows_waits(vary)
        if not stays and any(lane.copies for lane in layout.lanes):
            name = policy_name(type(self.system.alpha))
            allowed = "static where variants need copies and system.vary chooses none"
            raise SettingError("system.alpha.policy", name, allowed)

    @property
    def places(self) -> tuple[Slice, ...]:
        """The places for a batch on each chip: slices, or the lanes of a layout."""
        if self.system.layout is None:
            return slices(self.platform, self.mig)
        return tuple(lane.place for lane in self.system.layout.lanes)

    def _check_roles_and_moves(self) -> None:
        moves = move_s(self.system.preempt, 0, 0.0, True) < math.inf
        if self.changes and self.system.prompt_share > 0.0:
            raise SettingError("mig_changes", len(self.changes), "none with system.prompt_share")
        if self.changes and moves:
            raise SettingError("mig_changes", len(self.changes), "none where engines move")
        if self.system.layout is not None and self.system.prompt_share > 0.0:
            share = self.system.prompt_share
            raise SettingError("system.prompt_share", share, "0 with system.layout")
        if self.system.layout is not None and moves:
            name = policy_name(type(self.system.preempt))
            raise SettingError("system.preempt.policy", name, "another one with system.layout")

    @property
    def weight_memory_bytes(self) -> float:
        """A chip's host memory for weights."""
        return float(self.platform.host.memory_bytes) - self.system.kv_host_bytes
