"""Starts of an engine as stages on disk, CPU and GPU: serial, overlapped or restored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from c2c.errors import unknown_name
from c2c.serving import Plan, Work, path_ends
from c2c.systems.medusa.stages import Stages

__all__ = ["STARTS", "Span", "loading_s", "plan_of", "schedule", "stage"]

STARTS: Final = ("vllm", "vllm_async", "no_graph", "medusa")


def stage(name: str, seconds: float, on: str, after: tuple[str, ...] = ()) -> Work:
    """Return a stage that occupies one unit: disk, cpu or gpu."""
    return Work(name=name, seconds=seconds, draws={on: seconds}, after=after)


@dataclass(frozen=True, slots=True)
class Span:
    """Begin and end of a stage, in seconds."""

    stage: Work
    begin_s: float
    end_s: float


def plan_of(start: str, stages: Stages, *, has_weights: bool = True) -> Plan:
    """Return a start's stages.

    Args:
      start: vllm: all in sequence; vllm_async: weights beside tokenizer and KV; no_graph: no
        capture; medusa: KV first, then weights beside tokenizer and warm-up, then graphs.
      has_weights: False: only KV cache and graphs are left.

    Raises:
      SettingError: an unknown start.
    """
    s = stages
    if start not in STARTS:
        raise unknown_name("system.start", start, STARTS)
    if not has_weights:
        return _left(start, s)
    structure = stage("structure", s.structure_s, "cpu")
    weights = stage("weights", s.weights_s, "disk", ("structure",))
    if start in ("vllm", "no_graph"):
        serial = (
            structure,
            weights,
            stage("tokenizer", s.tokenizer_s, "cpu", ("weights",)),
            stage("kv_profile", s.kv_profiled_s, "gpu", ("tokenizer",)),
        )
        capture = stage("capture", s.captured_s, "gpu", ("kv_profile",))
        return serial if start == "no_graph" else (*serial, capture)
    if start == "vllm_async":
        return (
            structure,
            stage("weights", s.weights_s + s.weights_delay_s, "disk", ("structure",)),
            stage("tokenizer", s.tokenizer_s, "cpu", ("structure",)),
            stage("kv_profile", s.kv_profiled_s, "gpu", ("tokenizer",)),
            stage("capture", s.captured_s, "gpu", ("kv_profile", "weights")),
        )
    rest_s = s.restored_s - s.beside_weights_s
    return (
        structure,
        stage("kv_restore", s.kv_restored_s, "gpu", ("structure",)),
        stage("weights", s.weights_s, "disk", ("kv_restore",)),
        stage("tokenizer", s.tokenizer_s, "cpu", ("kv_restore",)),
        stage("first_layer", s.beside_weights_s, "gpu", ("tokenizer",)),
        stage("restore", rest_s, "gpu", ("first_layer", "weights")),
    )


def _left(start: str, s: Stages) -> Plan:
    if start == "medusa":
        return (
            stage("kv_restore", s.kv_restored_s, "gpu"),
            stage("restore", s.restored_s, "gpu", ("kv_restore",)),
        )
    profile = stage("kv_profile", s.kv_profiled_s, "gpu")
    if start == "no_graph":
        return (profile,)
    return (profile, stage("capture", s.captured_s, "gpu", ("kv_profile",)))


def schedule(plan: Sequence[Work]) -> tuple[Span, ...]:
    """Return each stage's span; it begins when predecessors have ended and its unit is free.

    >>> [span.end_s for span in schedule([stage("a", 1.0, "cpu"), stage("b", 2.0, "cpu")])]
    [1.0, 3.0]
    """
    last: dict[str, str] = {}
    in_turn = []
    for work in plan:  # a unit runs its stages in the order of the plan
        units = tuple(work.draws)
        before = tuple(last[unit] for unit in units if unit in last)
        in_turn.append(replace(work, after=work.after + before))
        last.update(dict.fromkeys(units, work.name))
    ends = path_ends(tuple(in_turn), lambda work: work.seconds)
    begins = {work.name: max((ends[a] for a in work.after), default=0.0) for work in in_turn}
    return tuple(Span(work, float(begins[work.name]), float(ends[work.name])) for work in plan)


def loading_s(start: str, stages: Stages) -> float:
    """Return the seconds of a start's loading phase."""
    return max(span.end_s for span in schedule(plan_of(start, stages)))
