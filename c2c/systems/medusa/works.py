"""A start as the serving loop has it: works on the link and the disk, seconds by model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from c2c.models import ModelSpec
from c2c.serving import StartWork
from c2c.systems.medusa.stages import MeasuredStart, Stages, stages_of
from c2c.systems.medusa.start import Stage, plan_of

__all__ = ["start_works"]


def start_works(
    start: str,
    specs: Sequence[ModelSpec],
    measured: MeasuredStart,
    *,
    is_copied: bool,
    switch_s: Callable[[ModelSpec], float] = lambda _: 0.0,
) -> tuple[StartWork, ...]:
    """Return the works of a start, for `system.start`.

    Where weights are copied into HBM, all stages are there, and the weights go over the disk and
    the link as fast as these are. Where they stay in host memory, an engine that runs has structure
    and tokenizer, and what a switch takes is followed by KV cache and graphs.

    Args:
      start: one of `STARTS`.
      specs: the models.
      measured: one model's stages.
      is_copied: whether the weights have to get into HBM.
      switch_s: what changing the model takes where nothing is copied.

    Raises:
      SettingError: no such start.
    """
    found = {spec.name: stages_of(spec, measured) for spec in specs}
    plans = {name: plan_of(start, s, has_weights=is_copied) for name, s in found.items()}
    some = next(iter(plans.values()))
    if is_copied:
        works: list[StartWork] = []
        for k, stage in enumerate(some):
            seconds = {name: plan[k].seconds for name, plan in plans.items()}
            works += _copied(stage, seconds, found)
        return tuple(works)
    switch = StartWork(name="switch", seconds={s.name: switch_s(s) for s in specs}, over=("link",))
    cold = (
        StartWork(name="structure", seconds=measured.structure_s, when="cold"),
        StartWork(name="read", moves="weights", over=("disk",), when="cold", after=("structure",)),
        StartWork(
            name="tokenizer", seconds=measured.tokenizer_s, when="cold", after=("structure",)
        ),
    )
    first = ("switch", "read", "tokenizer")
    rest = tuple(
        StartWork(
            name=stage.name,
            seconds={name: plan[k].seconds for name, plan in plans.items()},
            after=stage.after or first,
        )
        for k, stage in enumerate(some)
    )
    return (switch, *cold, *rest)


def _copied(
    stage: Stage, seconds: Mapping[str, float], found: Mapping[str, Stages]
) -> tuple[StartWork, ...]:
    after = tuple(name for a in stage.after for name in _names(a))
    if stage.name != "weights":
        return (StartWork(name=stage.name, seconds=dict(seconds), after=after),)
    # the bytes take their own time over disk and link; what is left is the delay beside a profile
    delay_s = {name: max(0.0, s - found[name].weights_s) for name, s in seconds.items()}
    return (
        StartWork(
            name="read", seconds=delay_s, moves="weights", over=("disk", "link"), when="cold",
            after=after,
        ),
        StartWork(name="copy", seconds=delay_s, moves="weights", when="held", after=after),
    )  # fmt: skip


def _names(stage: str) -> tuple[str, ...]:
    return ("read", "copy") if stage == "weights" else (stage,)
