"""Schema of a run, from the dataclasses of its settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from hydra_zen import builds
from hydra_zen.typing import DataclassOptions
from omegaconf import MISSING

from c2c.policies import DECISIONS
from c2c.ranges import AboveZero, Count, Index, OneOf, SomeShare
from c2c.serving import (
    AdapterCache,
    Disaggregation,
    Engines,
    ExpertCache,
    PrefixCache,
    Profile,
    Speculation,
    SystemSpec,
)
from c2c.workloads import Router, WorkloadConfig

__all__ = [
    "FleetConf",
    "RoutingConf",
    "RunConf",
    "ScaleConf",
    "SloConf",
    "TimelineConf",
]


# Hydra refuses unknown keys and wrong types by the schema, the dataclass invalid values.
def _conf(settings: type, name: str, **values: Any) -> Any:
    options: DataclassOptions = {"module": __name__, "cls_name": name}
    return builds(settings, populate_full_signature=True, zen_dataclass=options, **values)


# A policy is a node of its own (a choice in a group such as `system/place`). It is None here, so
# that no field of a default remains after another choice. A start may be a list or a mapping.
_NONE: dict[str, Any] = dict.fromkeys((*DECISIONS, "start"))
EnginesConf = _conf(Engines, "EnginesConf")
DisaggregationConf = _conf(Disaggregation, "DisaggregationConf")
ExpertCacheConf = _conf(ExpertCache, "ExpertCacheConf")
PrefixCacheConf = _conf(PrefixCache, "PrefixCacheConf")
AdapterCacheConf = _conf(AdapterCache, "AdapterCacheConf")
SpeculationConf = _conf(Speculation, "SpeculationConf")
ProfileConf = _conf(Profile, "ProfileConf")
SystemConf = _conf(
    SystemSpec,
    "SystemConf",
    **_NONE,
    engines=EnginesConf,
    disaggregation=DisaggregationConf,
    expert_cache=ExpertCacheConf,
    prefix_cache=PrefixCacheConf,
    adapter_cache=AdapterCacheConf,
    speculation=SpeculationConf,
    profile=ProfileConf,
)
RouterConf = _conf(Router, "RouterConf")
WorkloadConf = _conf(WorkloadConfig, "WorkloadConf")


@dataclass
class SloConf:
    """Targets that replace every model's own.

    Attributes:
      ttft_s: largest time to first token; null: the catalog's.
      tpot_s: largest time per output token; null: the catalog's.
      deadline_s: seconds after which a request is given up; null: the catalog's, by default never.
      attainment: share of requests that must meet both targets.
    """

    ttft_s: AboveZero | None = None
    tpot_s: AboveZero | None = None
    deadline_s: AboveZero | None = None
    attainment: SomeShare = 0.99


@dataclass
class ScaleConf:
    """Factors on the platform's rates, see `c2c.hardware.scaled`.

    Attributes:
      link: factor on the link's rate.
      hbm: factor on the HBM's rate.
      sms: factor on the number of SMs and their arithmetic rate.
    """

    link: AboveZero = 1.0
    hbm: AboveZero = 1.0
    sms: AboveZero = 1.0


@dataclass
class RoutingConf:
    """Distribution of tokens over experts, see `c2c.cost.Routing`.

    Attributes:
      kind: independent, balanced or power_law.
      skew: exponent of the power law; larger: fewer experts get most rows.
    """

    kind: str = "independent"
    skew: float = 0.0


@dataclass
class TimelineConf:
    """Size of the recorded timeline.

    Attributes:
      rows: number of first engine phases that are kept for Perfetto.
    """

    rows: Index = 20_000


@dataclass
class FleetPartConf:
    """Equal chips of a fleet, see `c2c.serving.FleetPart`.

    Attributes:
      hardware: a file of `conf/hardware`.
      mig: layout, auto, or a list of profiles as in `mig.parts`.
      count: chips, times `superchips`.
      constants: a file of `conf/calibration`; auto: as in `RunConf`.
    """

    hardware: str = MISSING
    mig: Any = "auto"
    count: Count = 1
    constants: str = "auto"


@dataclass
class FleetConf:
    """Unlike chips that serve together, in place of `hardware` and `mig`.

    Attributes:
      name: name of the file in `conf/fleet`.
      parts: groups of equal chips, numbered in this order.
    """

    name: str | None = None
    parts: list[FleetPartConf] = field(default_factory=list)


@dataclass
class FailureConf:
    """A scheduled failure of a chip, see `c2c.serving.Failure`."""

    at_s: float = MISSING
    chip: int = MISSING
    repair_s: float = MISSING


@dataclass
class FailuresConf:
    """Failures of chips, see `c2c.serving.Failures`; mtbf_hours=null draws none."""

    mtbf_hours: AboveZero | None = None
    repair_s: AboveZero = 3600.0
    host_chips: Index = 0
    events: list[FailureConf] = field(default_factory=list)


@dataclass
class RunConf:
    """All settings of a run. It is not frozen: a frozen schema refuses overrides.

    Attributes:
      hardware: platform, a file of `conf/hardware`.
      mig: MIG layout, such as 7x12gb; auto: the system's choice.
      failures: failures of chips, see `c2c.serving.Failures`.
      node: GPUs with links between them, a file of `conf/node`, for systems with `system.layout`;
        {}: none.
      fleet: unlike chips: a file of `conf/fleet`, or `fleet.parts=[{hardware: gh200, mig: 7x12gb,
        count: 2}, ...]`.
      catalog: served models, a file of `conf/catalog`.
      workload: requests, a file of `conf/workload`.
      system: policies and their settings, a file of `conf/system`; a policy is a choice such as
        system/alpha.
      code: Python files with the user's policies.
      conf: folders of the user's chips, layouts, nodes and calibrations, searched after `conf/`.
      link: capacity of the link: measured or datasheet.
      superchips: number of chips, or copies of the node or fleet.
      tensor_parallel: chips that compute each step together, each with a part of heads,
        feed-forward columns and KV cache.
      expert_parallel: chips of a device have whole experts, not parts.
      cells: parts of the fleet with chips and models of their own.
      shards: processes for parts that share no model; auto: as cores and parts allow. Results are
        equal.
      constants: cost-model constants, a file of `conf/calibration`; auto: the platform's, else
        `datasheet`.
      engine: file of `conf/engines` whose host time of a step replaces the calibration's; null:
        none.
      precision: of all models: bf16, fp8, fp8_block, nvfp4, mxfp4, int8, int4, or some of weights,
        compute and cache; null: the checkpoints'.
      routing: distribution of tokens over experts.
      router: experts of each token, for systems that cache experts in HBM.
      weights_start: where all weights are at time 0, host or disk.
      slo: targets that replace the catalog's.
      scale: factors on the platform's rates.
      seed: seed of all random streams.
      timeline: size of the timeline for Perfetto.
      figures: draw PNG, SVG and PDF; null: only `c2c advise` and `c2c capacity` draw.
      resume: false: run again even if the run folder is complete.
      overwrite: accept a `folder` with other files, which stay, or another run's results, replaced.
      objective: result for a sweeper, see `experiments.simulation.objective`.
      out: folder of run folders, each named by its settings.
      folder: the run folder itself; null: one in `out`.
    """

    hardware: dict[str, Any] = field(default_factory=dict)
    mig: dict[str, Any] = field(default_factory=lambda: {"name": "auto"})
    failures: FailuresConf = field(default_factory=FailuresConf)
    node: dict[str, Any] = field(default_factory=dict)
    fleet: FleetConf = field(default_factory=FleetConf)
    catalog: dict[str, Any] = field(default_factory=dict)
    workload: Any = WorkloadConf
    system: Any = SystemConf
    code: list[str] = field(default_factory=list)
    conf: list[str] = field(default_factory=list)
    link: Annotated[str, OneOf("datasheet", "measured")] = "measured"
    superchips: Count = 1
    tensor_parallel: Count = 1
    expert_parallel: bool = False
    cells: Count = 1
    shards: Any = 1
    constants: str = "auto"
    engine: str | None = None
    precision: Any = None
    routing: RoutingConf = field(default_factory=RoutingConf)
    router: Any = RouterConf
    weights_start: Annotated[str, OneOf("host", "disk")] = "host"
    slo: SloConf = field(default_factory=SloConf)
    scale: ScaleConf = field(default_factory=ScaleConf)
    seed: Index = 0
    timeline: TimelineConf = field(default_factory=TimelineConf)
    figures: bool | None = None
    resume: bool = True
    overwrite: bool = False
    objective: Any = None
    out: str = "runs/simulate"
    folder: str | None = None
