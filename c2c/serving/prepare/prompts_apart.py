"""Layouts with prompt-only devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from c2c.serving.prepare.lanes import Lane
from c2c.serving.tables.plans import Cost, Plan, Work

__all__ = ["prompts_apart"]


def prompts_apart(
    decodes: Lane,
    prompts: Sequence[Lane],
    sent: Mapping[str, Cost],
    ways: Sequence[Sequence[str]],
) -> tuple[Lane, ...]:
    """Return lanes of prompts that another lane decodes when it has room.

    Args:
      decodes: lane that decodes the prompts.
      prompts: lanes that compute whole steps.
      sent: transfer seconds by prompt tokens, by a model's spec.
      ways: resources from each lane's device to the decoding lane's.
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
