"""Answers that end before their limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from c2c.policies import apart, jitable
from c2c.serving.step_report import ends_prompt, shorten, shorten_decode
from c2c.serving.tables.batch import generated, tokens_left
from c2c.serving.tables.state import SLOT, Loop, Serving
from c2c.simulator.works.world import Machine

__all__ = ["end_by_length", "run_steps"]


def _cuts_runs(values: Mapping[type, Any]) -> bool:
    return bool(values[Machine].cuts_runs)


@jitable
def _to_length(s: Serving, i: int, k: int) -> int:
    # Tokens that decode k of instance i has left until its answer ends.
    req = s.request[s.decoding[i, k, SLOT]]
    return int(req.length - req.carried - generated(s, i, k))


@apart("run_steps", needed=_cuts_runs)
def run_steps(w: Loop, machine: Machine, d: int) -> int:
    """Return device `d`'s steps to the end of the first answer."""
    plan = w.s.plan[d]
    steps = min(int(plan.steps), machine.most_steps)
    for k in range(plan.decodes):
        steps = min(steps, _to_length(w.s, plan.instance, k))
    return steps


@apart("end_by_length", needed=_cuts_runs)
def end_by_length(
    w: Loop,
    machine: Machine,  # noqa: ARG001 (which says that it is needed)
    d: int,
) -> None:
    """Cut the limits of requests that end with device `d`'s steps."""
    plan, steps = w.s.plan[d], w.s.report[d].steps
    i = int(plan.instance)
    for k in range(plan.decodes):
        if _to_length(w.s, i, k) <= steps:
            shorten_decode(w.fleet, w.s, i, k, tokens_left(w.s, i, k) - steps)
    for k in range(w.s.instance[i].n_prefill):
        slot = int(w.s.prefilling[i, k])
        req = w.s.request[slot]
        if ends_prompt(w.s, slot) and req.length - req.carried <= 1:
            shorten(w.fleet, w.s, i, slot, req.output - 1)
