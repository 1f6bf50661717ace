"""Starts of an engine as stages over disk, CPU and GPU: one by one, overlapped, restored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from c2c.errors import unknown_name
from c2c.systems.medusa.stages import Stages

__all__ = ["STARTS", "Span", "Stage", "loading_s", "plan_of", "schedule"]

Unit = Literal["disk", "cpu", "gpu"]
STARTS: Final = ("vllm", "vllm_async", "no_graph", "medusa")


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: what it takes, on what, after which others."""

    name: str
    seconds: float
    on: Unit
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """When a stage ran."""

    stage: Stage
    begin_s: float
    end_s: float


def plan_of(start: str, stages: Stages, *, has_weights: bool = True) -> tuple[Stage, ...]:
    """Return the stages of a start.

    Args:
      start: vllm: one after the other. vllm_async: weights beside tokenizer and KV cache. no_graph:
        vllm without capture. medusa: KV cache first, then weights beside tokenizer and the first
        layer's warm-up, then the graphs are restored.
      stages: of the model.
      has_weights: False where weights stay in host memory and the engine is running: structure,
        weights and tokenizer are there, and KV cache and graphs are what is left.

    Raises:
      SettingError: no such start.
    """
    s = stages
    if start not in STARTS:
        raise unknown_name("system.start", start, STARTS)
    if not has_weights:
        return _left(start, s)
    structure = Stage("structure", s.structure_s, "cpu")
    weights = Stage("weights", s.weights_s, "disk", ("structure",))
    if start in ("vllm", "no_graph"):
        serial = (
            structure,
            weights,
            Stage("tokenizer", s.tokenizer_s, "cpu", ("weights",)),
            Stage("kv_profile", s.kv_profiled_s, "gpu", ("tokenizer",)),
        )
        capture = Stage("capture", s.captured_s, "gpu", ("kv_profile",))
        return serial if start == "no_graph" else (*serial, capture)
    if start == "vllm_async":
        return (
            structure,
            Stage("weights", s.weights_s + s.weights_delay_s, "disk", ("structure",)),
            Stage("tokenizer", s.tokenizer_s, "cpu", ("structure",)),
            Stage("kv_profile", s.kv_profiled_s, "gpu", ("tokenizer",)),
            Stage("capture", s.captured_s, "gpu", ("kv_profile", "weights")),
        )
    rest_s = s.restored_s - s.beside_weights_s
    return (
        structure,
        Stage("kv_restore", s.kv_restored_s, "gpu", ("structure",)),
        Stage("weights", s.weights_s, "disk", ("kv_restore",)),
        Stage("tokenizer", s.tokenizer_s, "cpu", ("kv_restore",)),
        Stage("first_layer", s.beside_weights_s, "gpu", ("tokenizer",)),
        Stage("restore", rest_s, "gpu", ("first_layer", "weights")),
    )


def _left(start: str, s: Stages) -> tuple[Stage, ...]:
    if start == "medusa":
        return (
            Stage("kv_restore", s.kv_restored_s, "gpu"),
            Stage("restore", s.restored_s, "gpu", ("kv_restore",)),
        )
    profile = Stage("kv_profile", s.kv_profiled_s, "gpu")
    if start == "no_graph":
        return (profile,)
    return (profile, Stage("capture", s.captured_s, "gpu", ("kv_profile",)))


def schedule(plan: Sequence[Stage]) -> tuple[Span, ...]:
    """Return when each stage runs: as soon as those before it have ended and its unit is free.

    >>> [span.end_s for span in schedule([Stage("a", 1.0, "cpu"), Stage("b", 2.0, "cpu")])]
    [1.0, 3.0]
    """
    ended: dict[str, float] = {}
    free: dict[Unit, float] = {}
    spans = []
    for stage in plan:
        ready = max((ended[name] for name in stage.after), default=0.0)
        begin = max(ready, free.get(stage.on, 0.0))
        ended[stage.name] = free[stage.on] = begin + stage.seconds
        spans.append(Span(stage, begin, begin + stage.seconds))
    return tuple(spans)


def loading_s(start: str, stages: Stages) -> float:
    """Return how long the loading phase of a start takes."""
    return max(span.end_s for span in schedule(plan_of(start, stages)))
