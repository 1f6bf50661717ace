"""Construction of a run's objects from settings, only here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from c2c.config.bounds import (
    check_catalog_size,
    check_memory,
    check_numbers,
    check_workload,
    free_bytes,
)
from c2c.config.fleets import GivenPart, given_parts, kept_off, of_devices
from c2c.config.layout import choose_layout, planned_requests
from c2c.config.mechanisms import is_by_mechanism, mechanisms_of, with_parts
from c2c.config.nodes import node_of
from c2c.config.planner import Plan, plan_layout
from c2c.config.plug_ins import plug_ins, search_settings, source_folders
from c2c.config.settings import Settings, checked
from c2c.config.user_code import load_code
from c2c.cost import (
    Constants,
    Routing,
    calibration_for,
    calibration_names,
    load_constants,
    load_engine,
)
from c2c.cost.constants import GENERIC
from c2c.errors import SettingError, unknown_name
from c2c.hardware import (
    MigConfig,
    Node,
    Platform,
    conf_folders,
    load_mig,
)
from c2c.models import Deployment, at_precision, is_shipped, load_catalog, spec_files
from c2c.policies import DECISIONS
from c2c.serving import (
    Failure,
    Failures,
    FleetPart,
    Prepared,
    ServingSetup,
    SystemSpec,
    prepare,
)
from c2c.simulator import try_policies
from c2c.simulator.arrivals.groups import groups_of
from c2c.systems.mechanism import Context, Mechanism
from c2c.workloads import (
    Router,
    Workload,
    WorkloadConfig,
    build_workload,
    doubts,
    workload_config,
    workload_files,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = [
    "Layout", "RunSetup", "build", "build_layout", "data_folders", "input_files",
]  # fmt: skip


type _Notes = tuple[str, ...]

MOST_WALKED: Final = 1000  # requests with exact experts if `misses` is auto: 5 to 20 s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """A checked run, ready to start.

    Attributes:
      prepared: with cost tables; `prepared.setup` is the `ServingSetup`.
      files: data files read.
      notes: automatic choices, a line each.
      plan: comparison of layouts by `mig=planned`.
    """

    prepared: Prepared
    workload: Workload
    seed: int
    timeline_rows: int
    files: tuple[Path, ...]
    settings: Settings = field(repr=False)
    notes: tuple[str, ...] = ()
    plan: Plan | None = None

    @property
    def serving(self) -> ServingSetup:
        """The hardware, models and system."""
        return self.prepared.setup

    def with_(self, **changes: Any) -> RunSetup:
        """Return the run with other settings, but no other files; faster than `build`.

        Dots are double underscores: `setup.with_(seed=1, workload__rate_rps=2)`.

        Raises:
          SettingError: as `build`, and for an unknown name.
        """
        named = {name.replace("__", "."): value for name, value in changes.items()}
        return build(self.settings.with_(named))


def build(cfg: DictConfig | Mapping[str, Any]) -> RunSetup:
    """Build and check a run; only `mig=planned` simulates here.

    Args:
      cfg: from `load` or Hydra, or a mapping with the keys of `conf/config.yaml`.

    Raises:
      SettingError: an invalid setting.
      DataError: a file that cannot be used.
      PolicyError: a user's policy that fails within the first requests.
    """
    plain = checked(cfg)
    check_numbers(plain)
    free = free_bytes()
    check_catalog_size(plain["catalog"], free)
    seed, rows = plain["seed"], plain["timeline"]["rows"]
    plug_ins()
    load_code(plain["code"])
    search_settings(plain["conf"])
    mechanisms = mechanisms_of(plain)
    node = node_of(plain, mechanisms)
    entries = given_parts(plain, node)
    measured = [_constants(part, plain["engine"]) for part in entries]
    sources = tuple(dict.fromkeys(line for _, lines in measured for line in lines))
    deployments = _deployments(plain, plain["catalog"])
    to_plan = planned_requests(plain["mig"])

    def fleet(
        models: tuple[Deployment, ...],
    ) -> tuple[ServingSetup, _Notes, _Notes, Prepared | None]:
        parts = list(zip(entries, (constants for constants, _ in measured), strict=True))
        serving, notes, of_mechanisms = _serving(plain, node, parts, models, mechanisms)
        check_memory(serving, rows, free)
        return serving, notes, of_mechanisms, None if to_plan else prepare(serving)

    settings = _workload(plain["workload"])
    check_workload(settings, free)
    # The catalog's fleet first: a wrong setting is refused before a long trace is read.
    serving, notes, of_mechanisms, prepared = fleet(deployments)
    names, specs = tuple(d.name for d in deployments), [d.spec.name for d in deployments]
    may_add = is_shipped(plain["catalog"])
    workload = build_workload(settings, names, seed, specs, may_add=may_add)
    if workload.added:
        deployments += _deployments(plain, [{"spec": name} for name in workload.added])
    if workload.models != names:
        pairs = zip(workload.models, workload.made_of, strict=True)
        with _hint(f"{len(workload.models):,} models: each id of the trace has a deployment of its "
                   "own. workload.assignment=popularity_rank shares the catalog's."):  # fmt: skip
            serving, notes, of_mechanisms, prepared = fleet(
                tuple(replace(deployments[k], name=name) for name, k in pairs)
            )
    plan = None
    if prepared is None:
        plan = plan_layout(serving, entries[0].platform.layouts, workload, requests=to_plan)
        prepared, notes = plan.prepared, plan.notes
    prepared, of_misses = _with_table(prepared, workload)
    try_policies(prepared, workload)
    notes = (*notes, *of_misses, *_in_one(plain["shards"], prepared, workload))
    return RunSetup(
        prepared=prepared,
        workload=workload,
        seed=seed,
        timeline_rows=rows,
        files=(
            *input_files(plain),
            *source_folders((serving.system.policies, *(m.prepare for m in mechanisms))),
        ),
        settings=plain,
        notes=(
            *doubts(workload),
            *notes,
            *sources,
            *of_mechanisms,
            *kept_off(prepared),
            *_on_disk(prepared),
        ),
        plan=plan,
    )


def _serving(
    plain: Mapping[str, Any],
    node: Node | None,
    parts: Sequence[tuple[GivenPart, Constants]],
    deployments: tuple[Deployment, ...],
    mechanisms: Sequence[Mechanism],
) -> tuple[ServingSetup, _Notes, _Notes]:
    one, constants = parts[0]
    if any(mechanism.over_chips for mechanism in mechanisms):
        deployments = tuple(replace(d, spec=replace(d.spec, name=d.name)) for d in deployments)
    system, of_mechanisms = with_parts(
        mechanisms,
        Context(
            system=_system(plain["system"]),
            platform=one.platform,
            node=node,
            deployments=deployments,
            constants=constants,
            run=plain,
        ),
    )
    system = of_devices(system, plain["tensor_parallel"])
    layouts = [choose_layout(part.mig, part.platform, system) for part, _ in parts]
    notes = tuple(line for _, lines in layouts for line in lines)
    first, *beside = [
        FleetPart(platform=part.platform, mig=mig, count=part.count, constants=part_constants)
        for (part, part_constants), (mig, _) in zip(parts, layouts, strict=True)
    ]
    system = _with_engine(system, plain["engine"], first)
    serving = ServingSetup(
        platform=one.platform,
        mig=first.mig,
        superchips=first.count,
        link_variant=plain["link"],
        deployments=deployments,
        system=system,
        constants=constants,
        beside=tuple(beside),
        routing=Routing(**plain["routing"]),
        router=Router(**plain["router"]),
        weights_start=plain["weights_start"],
        cells=plain["cells"],
        seed=plain["seed"],
        failures=_failures(plain["failures"], plain["tensor_parallel"]),
    )
    return serving, notes if system.layout is None else system.layout.notes, of_mechanisms


@contextmanager
def _hint(hint: str) -> Iterator[None]:
    try:
        yield
    except SettingError as error:
        text = f"{error.hint} {hint}".strip()
        value = len(error.value) if isinstance(error.value, list) else error.value
        raise SettingError(error.field, value, error.allowed, text) from None


def input_files(settings: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return a run's data and user code, without plug-ins."""
    return (
        *sorted(set(workload_files(_workload(settings["workload"])).values())),
        *(
            f
            for spec in dict.fromkeys(
                one["spec"] for one in settings["catalog"]["models"] if "spec" in one
            )
            for f in spec_files(spec)
        ),
        *data_folders(settings),
        *(Path(file).expanduser().resolve() for file in settings["code"]),
    )


def data_folders(settings: Mapping[str, Any]) -> list[Path]:
    """Return the folders of settings that a run reads."""
    plug_ins()
    search_settings(settings["conf"])
    groups = (
        "hardware", "mig", "mig_table", "node", "fleet", "calibration", "collectives", "engines",
        "kernels", "kernel_times", "operations", "starts",
    )  # fmt: skip
    return [f / group for f in conf_folders() for group in groups if (f / group).is_dir()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A platform, its layout and notes."""

    platform: Platform
    mig: MigConfig
    notes: tuple[str, ...]


def build_layout(cfg: DictConfig | Mapping[str, Any]) -> Layout:
    """Return the layout; only `mig=planned` reads catalog and workload.

    Raises:
      SettingError: as `build`, and for a fleet of several parts.
    """
    plain = checked(cfg)
    search_settings(plain["conf"])
    system = _system(plain["system"])
    (one, *more) = given_parts(plain, node_of(plain, mechanisms_of(plain)))
    if more:
        raise SettingError("fleet", plain["fleet"]["name"], "no fleet: a layout is one chip's")
    platform = one.platform
    if planned_requests(plain["mig"]):
        setup = build(cfg)
        mig, notes = setup.serving.mig, setup.notes
    else:
        mig, notes = choose_layout(one.mig, platform, system)
    return Layout(
        platform=platform,
        mig=load_mig(mig) if isinstance(mig, str) else mig,
        notes=notes,
    )


def _constants(part: GivenPart, engine: str | None) -> tuple[Constants, tuple[str, ...]]:
    choice, platform = part.constants, part.platform
    names = ("auto", *calibration_names())
    if choice not in names:
        raise unknown_name(f"{part.where}constants", choice, names)
    name = calibration_for(platform.name) if choice == "auto" else choice
    constants = load_constants(name)
    if engine is not None:
        constants = load_engine(engine).constants(constants, platform.host.host_factor)
    if name != GENERIC or choice == GENERIC:
        return constants, ()
    return constants, (
        f"constants {GENERIC}: nobody has measured {platform.name}; rates are its datasheet's, "
        "other constants are medians of the measured chips",
    )


def _on_disk(prepared: Prepared) -> tuple[str, ...]:
    fleet, setup = prepared.fleet, prepared.setup
    absent = len(fleet.weight_bytes) - len(set(fleet.home_model[prepared.held].tolist()))
    if setup.weights_start != "host" or absent == 0:
        return ()
    memory_gb = sum(p.count * p.platform.host.memory_bytes for p in setup.parts) / 1e9
    return (
        f"host memory of {memory_gb:.0f} GB is smaller than the catalog's "
        f"{fleet.weight_bytes.sum() / 1e9:.0f} GB: {absent} of {len(fleet.weight_bytes)} models "
        "are read from disk on demand and evict others",
    )


def _with_table(prepared: Prepared, workload: Workload) -> tuple[Prepared, tuple[str, ...]]:
    """Return the run, with tabulated misses for `misses` auto and a long walk, and a note."""
    system, requests = prepared.setup.system, int(workload.description["requests"])
    caches = system.traits.experts.caches_experts
    if system.expert_cache.misses != "auto" or not caches or requests <= MOST_WALKED:
        return prepared, ()
    try:
        cache = replace(system.expert_cache, misses="table")
        result = prepare(replace(prepared.setup, system=replace(system, expert_cache=cache)))
    except SettingError as error:
        if error.field != "system.expert_cache.misses":
            raise
        return prepared, ()
    return result, (
        f"system.expert_cache.misses=auto: table, for {requests:,} requests; exact walks the "
        f"layers of every step and is the choice up to {MOST_WALKED:,} requests",
    )


def _failures(settings: Mapping[str, Any], ranks: int) -> Failures:
    hours, host = settings["mtbf_hours"], settings["host_chips"]
    if host % ranks:
        raise SettingError("failures.host_chips", host, f"a multiple of tensor_parallel ({ranks})")
    if hours is not None and host == 0:
        hours /= ranks
    return Failures(
        mtbf_hours=math.inf if hours is None else hours,
        repair_s=settings["repair_s"],
        host_chips=host // ranks,
        events=tuple(
            Failure(**{**one, "chip": one["chip"] // ranks}) for one in settings["events"]
        ),
    )


def _in_one(shards: Any, prepared: Prepared, workload: Workload) -> tuple[str, ...]:
    if shards != "auto" and (type(shards) is not int or shards < 1):
        raise SettingError("shards", shards, "auto, or a whole number above 0")
    if shards == 1:
        return ()
    if workload.loop is not None:
        return (f"shards={shards}: a closed loop's clients need one process",)
    groups = len(set(groups_of(prepared).tolist()))
    if shards != "auto" and groups >= shards:
        return ()
    if shards == "auto" and groups > 1:
        return ()
    return (
        f"shards={shards}: the fleet has {groups} part{'s'[: groups != 1]} whose chips share no "
        "model with others; cells=<number> makes more",
    )


def _system(settings: Mapping[str, Any]) -> SystemSpec:
    unnamed = {k for k in (*DECISIONS, "start") if settings[k] is None}
    keys = {k for k in ("start", "layout") if is_by_mechanism(settings[k])}
    return SystemSpec(**{k: v for k, v in settings.items() if k not in unnamed | keys})


def _with_engine(system: SystemSpec, engine: str | None, part: FleetPart) -> SystemSpec:
    platform = part.platform
    if engine is None or system.layout is not None or part.layout != platform.mig[0]:
        return system
    free_bytes = (1.0 - load_engine(engine).memory_share) * platform.gpu.hbm_bytes
    return replace(system, hbm_reserve_bytes=max(system.hbm_reserve_bytes, free_bytes))


def _workload(settings: Mapping[str, Any]) -> WorkloadConfig:
    return workload_config(settings)


def _deployments(plain: Mapping[str, Any], catalog: Any) -> tuple[Deployment, ...]:
    ttft_s, tpot_s, deadline_s = (plain["slo"][n] for n in ("ttft_s", "tpot_s", "deadline_s"))
    return tuple(
        replace(
            d,
            ttft_slo_s=d.ttft_slo_s if ttft_s is None else ttft_s,
            tpot_slo_s=d.tpot_slo_s if tpot_s is None else tpot_s,
            deadline_s=d.deadline_s if deadline_s is None else deadline_s,
            spec=d.spec if plain["precision"] is None else at_precision(d.spec, plain["precision"]),
        )
        for d in load_catalog(catalog)
    )
