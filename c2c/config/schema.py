"""The schema of a run, derived from the dataclasses that the settings become.

One definition a setting: types, defaults and checks stand in the dataclass. Hydra refuses unknown
keys and wrong types by this schema; the dataclass refuses what cannot work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hydra_zen import builds
from hydra_zen.typing import DataclassOptions
from omegaconf import MISSING

from c2c.policies import DECISIONS
from c2c.serving import Disaggregation, Engines, ExpertCache, PrefixCache, Profile, SystemSpec
from c2c.workloads import Router, WorkloadConfig

__all__ = [
    "FleetConf",
    "MigChangeConf",
    "RoutingConf",
    "RunConf",
    "ScaleConf",
    "SloConf",
    "TimelineConf",
]


def _conf(settings: type, name: str, **given: Any) -> Any:
    """Return the schema of a dataclass, which workers of a sweep unpickle by its name."""
    options: DataclassOptions = {"module": __name__, "cls_name": name}
    return builds(settings, populate_full_signature=True, zen_dataclass=options, **given)


# A policy is a node of its own (a choice in `system/place` and so on); none here, so that choosing
# another one leaves nothing of it behind. A start may be a list or a mapping.
_NONE: dict[str, Any] = dict.fromkeys((*DECISIONS, "start"))
EnginesConf = _conf(Engines, "EnginesConf")
DisaggregationConf = _conf(Disaggregation, "DisaggregationConf")
ExpertCacheConf = _conf(ExpertCache, "ExpertCacheConf")
PrefixCacheConf = _conf(PrefixCache, "PrefixCacheConf")
ProfileConf = _conf(Profile, "ProfileConf")
SystemConf = _conf(
    SystemSpec,
    "SystemConf",
    **_NONE,
    engines=EnginesConf,
    disaggregation=DisaggregationConf,
    expert_cache=ExpertCacheConf,
    prefix_cache=PrefixCacheConf,
    profile=ProfileConf,
)
RouterConf = _conf(Router, "RouterConf")
WorkloadConf = _conf(WorkloadConfig, "WorkloadConf")


@dataclass
class SloConf:
    """Targets that replace every model's own; None keeps the catalog's.

    Attributes:
      ttft_s: seconds to the first token.
      tpot_s: seconds between two tokens.
      attainment: the share of the requests that is to meet both, for the verdict.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    attainment: float = 0.99


@dataclass
class ScaleConf:
    """Factors on the platform, see `c2c.hardware.scaled`.

    Attributes:
      link: on the link's rate.
      hbm: on the rate of HBM.
      sms: on the number of SMs and the arithmetic.
    """

    link: float = 1.0
    hbm: float = 1.0
    sms: float = 1.0


@dataclass
class RoutingConf:
    """Tokens' choice of experts, see `c2c.cost.Routing`.

    Attributes:
      kind: independent, balanced or power_law.
      skew: exponent of the power law; the larger, the fewer experts have most of the rows.
    """

    kind: str = "independent"
    skew: float = 0.0


@dataclass
class TimelineConf:
    """The part of the timeline that is kept.

    Attributes:
      rows: engine phases kept for Perfetto, the first ones.
    """

    rows: int = 20_000


@dataclass
class MigChangeConf:
    """A change of every chip's layout during a run, see `c2c.serving.LayoutChange`.

    Attributes:
      at_s: when the first chip begins.
      mig: the layout from then on, by its name.
      parts: or by its profiles, as of `mig=custom`.
      drain: requests that compute on a slice that goes end there, or they begin again elsewhere.
      stagger_s: each further chip begins so much later.
    """

    at_s: float = MISSING
    mig: str | None = None
    parts: list[str] = field(default_factory=list)
    drain: bool = True
    stagger_s: float = 0.0


@dataclass
class FleetPartConf:
    """Chips of a fleet that are alike, see `c2c.serving.FleetPart`.

    Attributes:
      hardware: a name of `conf/hardware`.
      mig: a layout's name, auto, or a list of profiles as `mig.parts`.
      count: how many chips.
      constants: a file of `conf/calibration`; auto: as of a run.
    """

    hardware: str = MISSING
    mig: Any = "auto"
    count: int = 1
    constants: str = "auto"


@dataclass
class FleetConf:
    """Unlike chips that serve together, in place of hardware and mig.

    Attributes:
      name: of a file in `conf/fleet`.
      parts: chips that are alike, numbered in this order.
    """

    name: str | None = None
    parts: list[FleetPartConf] = field(default_factory=list)


@dataclass
class FailureConf:
    """A chosen failure of a chip, see `c2c.serving.Failure`."""

    at_s: float = MISSING
    chip: int = MISSING
    repair_s: float = MISSING


@dataclass
class FailuresConf:
    """Chips that fail and return, see `c2c.serving.Failures`; mtbf_hours=null draws none."""

    mtbf_hours: float | None = None
    repair_s: float = 3600.0
    host_chips: int = 0
    events: list[FailureConf] = field(default_factory=list)


@dataclass
class RunConf:
    """The top level. Not frozen: a frozen schema would refuse overrides.

    Attributes:
      hardware: `conf/hardware`, see `c2c.hardware.platform_from_mapping`.
      mig: `conf/mig`; the name `auto` leaves the choice to the system, see `build`.
      mig_changes: of every chip's layout during the run, in order of time.
      failures: of chips during the run, by rate or chosen, see `c2c.serving.Failures`.
      node: `conf/node`, several GPUs with links between them instead of `hardware`, where
        `system.layout` lies over them; {}: none.
      fleet: `conf/fleet`, or `fleet.parts=[{hardware: gh200, mig: 7x12gb, count: 2}, ...]`: unlike
        chips instead of `hardware` and `mig`.
      catalog: `conf/catalog`, see `c2c.models.load_catalog`.
      workload: `conf/workload`, see `c2c.workloads.WorkloadConfig`.
      system: `conf/system`, see `c2c.serving.SystemSpec`; its policies are groups in it, such as
        system/alpha, see `c2c.policies`.
      code: Python files with policies of the user's own, see `c2c.config.user_code`.
      conf: folders of the user's own settings, in which chips, layouts, nodes and calibrations are
        looked for by name after `conf/`, see `c2c.config.installed.search_settings`.
      link: variant of the link's capacity, measured or datasheet.
      superchips: how many of the platform, of the node, or of the whole fleet.
      tensor_parallel: chips that compute each step together as one device, each with a part of the
        heads, of the feed-forward columns and of the KV cache; `superchips` counts chips.
      expert_parallel: each of them has whole experts of a mixture, not a part of every one.
      cells: parts of the fleet that share no model: each has its chips, and its models on them.
      shards: processes that simulate parts of the fleet which share no model; auto takes as many as
        there are cores and such parts. Results are those of one process.
      constants: a file of `conf/calibration`; auto: the platform's, or for a chip that nobody has
        measured `datasheet`, which the output says.
      engine: a file of `conf/engines`, whose host's part of a step takes the place of the
        calibration's; None: that stays.
      routing: how tokens choose their experts, see `c2c.cost.Routing`.
      router: which experts each token takes, where a system caches some in HBM; see
        `c2c.workloads.Router`.
      weights_start: where all weights are at time 0, host or disk.
      slo: targets that replace the catalog's.
      scale: factors on the platform.
      seed: splits into one stream a cause.
      timeline: what is kept for Perfetto.
      figures: draw PNG, SVG and PDF, which takes longer than a short run; null: a run draws none,
        `experiments.advise` and `experiments.capacity` do.
      resume: False runs again even if the folder is complete.
      overwrite: `folder` may hold other files, which stay, or another run's results, which do not.
      objective: what a run returns to a sweeper: fields of its summary, see
        `experiments.simulation.objective`.
      out: run folders are made in here, named by their settings.
      folder: or this very folder.
    """

    hardware: dict[str, Any] = field(default_factory=dict)
    mig: dict[str, Any] = field(default_factory=lambda: {"name": "auto"})
    mig_changes: list[MigChangeConf] = field(default_factory=list)
    failures: FailuresConf = field(default_factory=FailuresConf)
    node: dict[str, Any] = field(default_factory=dict)
    fleet: FleetConf = field(default_factory=FleetConf)
    catalog: dict[str, Any] = field(default_factory=dict)
    workload: Any = WorkloadConf
    system: Any = SystemConf
    code: list[str] = field(default_factory=list)
    conf: list[str] = field(default_factory=list)
    link: str = "measured"
    superchips: int = 1
    tensor_parallel: int = 1
    expert_parallel: bool = False
    cells: int = 1
    shards: Any = 1
    constants: str = "auto"
    engine: str | None = None
    routing: RoutingConf = field(default_factory=RoutingConf)
    router: Any = RouterConf
    weights_start: str = "host"
    slo: SloConf = field(default_factory=SloConf)
    scale: ScaleConf = field(default_factory=ScaleConf)
    seed: int = 0
    timeline: TimelineConf = field(default_factory=TimelineConf)
    figures: bool | None = None
    resume: bool = True
    overwrite: bool = False
    objective: Any = None
    out: str = "runs/simulate"
    folder: str | None = None
