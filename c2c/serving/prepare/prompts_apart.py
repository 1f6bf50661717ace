"""Prompts on devices of their own: lanes that compute them and send keys and values to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from c2c.serving.plans import Cost, Plan, Work
from c2c.serving.prepare.lanes import Lane

__all__ = ["prompts_apart"]


def prompts_apart(
    decodes: Lane,
    prompts: Sequence[Lane],
    sent: Mapping[str, Cost],
    ways: Sequence[Sequence[str]],
) -> tuple[Lane, ...]:
    """Return lanes whose prompts another lane decodes.

    A lane sends what a prompt leaves once it is computed, and computes no other one meanwhile.
    Until the other lane has room the prompt's keys and values take up room here.

    Args:
      decodes: the lane that takes them.
      prompts: lanes that compute whole steps; equal ones are of one kind.
      sent: by the name of a model's spec, seconds on the way by prompt tokens.
      ways: of each lane, the resources between its device and the other lane's.
    """
    return tuple(
        replace(
            lane,
            steps={
                spec: tuple(_sends(plan, sent[spec], way) for plan in plans)
                for spec, plans in lane.steps.items()
            },
            hands_to=decodes.place.name,
        )
        for lane, way in zip(prompts, ways, strict=True)
    )


def _sends(plan: Plan, cost: Cost, way: Sequence[str]) -> Plan:
    last = {work.name for work in plan} - {name for work in plan for name in work.after}
    send = Work(name="send", seconds=cost, draws=dict.fromkeys(way, cost),
                after=tuple(w.name for w in plan if w.name in last))  # fmt: skip
    return (*plan, send)
