"""Works of a start for the serving loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from c2c.errors import unknown_name
from c2c.hardware import conf_names
from c2c.models import ModelSpec
from c2c.policies import weights_in
from c2c.serving import Plan, SystemSpec, Weights, Work
from c2c.systems.mechanism import Context, Mechanism
from c2c.systems.medusa.stages import (
    MeasuredStart,
    Stages,
    launch_s,
    load_measured_start,
    stages_of,
)
from c2c.systems.medusa.start import STARTS, plan_of

__all__ = ["SYSTEM", "NamedStart", "start_works"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStart:
    """Settings of `system.start=medusa/<way>`.

    Attributes:
      way: name of the start.
      measured: file of `conf/starts`.
    """

    way: str = "medusa"
    measured: str = "a100_40_vllm"

    def __post_init__(self) -> None:
        if self.way not in STARTS:
            raise unknown_name("system.start.way", self.way, STARTS)
        if self.measured not in conf_names("starts"):
            raise unknown_name("system.start.measured", self.measured, conf_names("starts"))


def start_works(
    start: str,
    specs: Sequence[ModelSpec],
    measured: MeasuredStart,
    *,
    is_copied: bool,
    switch_s: Callable[[ModelSpec], float] = lambda _: 0.0,
) -> Plan:
    """Return a start's works, for `system.start`.

    Args:
      is_copied: whether weights go into HBM; else a running engine lacks KV and graphs.
      switch_s: of a model's change without copies.

    Raises:
      SettingError: an unknown start.
    """
    stages = {spec.name: stages_of(spec, measured) for spec in specs}
    plans = {name: plan_of(start, s, has_weights=is_copied) for name, s in stages.items()}
    some = next(iter(plans.values()))
    if is_copied:
        works: list[Work] = []
        for k, stage in enumerate(some):
            seconds = _seconds(plans, k)
            works += _copied(stage, seconds, stages)
        return tuple(works)
    switch = Work(name="switch", seconds={s.name: switch_s(s) for s in specs})
    cold = (
        Work(name="structure", seconds=measured.structure_s, when="cold"),
        Work(name="read", draws={"disk": Weights()}, when="cold", after=("structure",)),
        Work(name="tokenizer", seconds=measured.tokenizer_s, when="cold", after=("structure",)),
    )
    first = ("switch", "read", "tokenizer")
    rest = tuple(
        Work(
            name=stage.name,
            seconds=_seconds(plans, k),
            after=stage.after or first,
        )
        for k, stage in enumerate(some)
    )
    return (switch, *cold, *rest)


def _seconds(plans: Mapping[str, Plan], k: int) -> dict[str, float]:
    return {name: cast("float", plan[k].seconds) for name, plan in plans.items()}


def _copied(stage: Work, seconds: Mapping[str, float], stages: Mapping[str, Stages]) -> Plan:
    after = tuple(name for a in stage.after for name in _names(a))
    if stage.name != "weights":
        return (Work(name=stage.name, seconds=seconds, after=after),)
    # disk and link give the bytes' time; only the delay beside the profiling is added
    delay_s = {name: max(0.0, s - stages[name].weights_s) for name, s in seconds.items()}
    over = {"disk": Weights(), "link": Weights()}
    return (
        Work(name="read", seconds=delay_s, draws=over, when="cold", after=after),
        Work(name="copy", seconds=delay_s, draws={"link": Weights()}, when="held", after=after),
    )


def _names(stage: str) -> tuple[str, ...]:
    return ("read", "copy") if stage == "weights" else (stage,)


def _prepare(context: Context) -> SystemSpec:
    constants, system, way = context.constants, context.system, context.settings.way
    specs = [d.spec for d in context.deployments]
    measured = load_measured_start(context.settings.measured)
    works = start_works(
        way,
        specs,
        measured,
        is_copied=weights_in(system.load) == "hbm",
        switch_s=lambda spec: constants.switch_moe_s if spec.experts else constants.switch_dense_s,
    )
    launches = {s.name: launch_s(s, measured) for s in specs} if way == "no_graph" else {}
    return replace(system, start=works, launch_s=launches)


def _notes(context: Context) -> tuple[str, ...]:
    measured = load_measured_start(context.settings.measured)
    chips = [part["hardware"] for part in context.run["fleet"]["parts"]] or [context.platform.name]
    others = [name for name in dict.fromkeys(chips) if name != measured.chip]
    if not others:
        return ()
    return (
        f"starts {measured.name}: host and GPU stages measured on {measured.chip} stand for those "
        f"of {', '.join(others)} (system.start.measured); weights move at each chip's own rates",
    )


SYSTEM: Final = Mechanism(
    part="start", settings=NamedStart, prepare=_prepare, ways=STARTS, notes=_notes
)
