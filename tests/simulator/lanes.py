"""Small layouts over several devices that the tests share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from c2c.hardware import load_platform, slices
from c2c.policies import AtOutstanding, FirstIdle, Fixed, Resident, Static
from c2c.serving import Cost, Curve, Lane, Plan, ServingSetup, StepLayout, Work
from tests.simulator.worlds import setup

SPEC = "llama-3-3b"
COLD = "llama-3-8b"
On = tuple[float, dict[int, float]]  # seconds alone, seconds of each resource by its number


def flat(seconds: float) -> Curve:
    """The same at every size."""
    return Curve((1, 10**6), np.array([seconds] * 2))


def on(resource: int, seconds: float) -> On:
    """A work on one resource."""
    return seconds, {resource: seconds}


def step(prefill: Sequence[On], decode: Sequence[On]) -> Plan:
    """Works one after another, which take as long at every size of prompts and of decodes."""
    plan: list[Work] = []
    for w in range(max(len(prefill), len(decode))):
        (of_prefill, uses), (of_decode, used) = (
            works[w] if w < len(works) else (0.0, {}) for works in (prefill, decode)
        )
        draws = {
            f"r{k}": Cost(flat(uses.get(k, 0.0)), flat(used.get(k, 0.0)))
            for k in sorted(uses.keys() | used.keys())
        }
        plan.append(
            Work(
                name=str(w),
                seconds=Cost(flat(of_prefill), flat(of_decode)),
                draws=draws,
                after=(str(w - 1),) if w else (),
            )
        )
    return tuple(plan)


def layout(
    *lanes: Sequence[Sequence[On]], resources: int, rows: int = 1000, hands_to: int | None = None,
    **fields: Any,
) -> StepLayout:  # fmt: skip
    """Lanes with the works of a prefill and of a decode step, a pair for each variant.

    All but those like `hands_to`, if it is given, hand their prompts to it.
    """
    (place, *_) = slices(load_platform("gh200"), "1x96gb")
    kv_bytes = rows * 1000 * 114_688.0
    made = []
    for number, variants in enumerate(lanes):
        steps = tuple(map(step, variants[::2], variants[1::2]))
        kind = next((k for k, other in enumerate(lanes[:number]) if other == variants), number)
        target = None if hands_to in (None, kind) else f"lane{hands_to}"
        made.append(Lane(place=replace(place, name=f"lane{kind}"), kv_bytes=kv_bytes,
                         steps={SPEC: steps}, hands_to=target))  # fmt: skip
    return StepLayout(
        name="test", resources=tuple(f"r{k}" for k in range(resources)), lanes=tuple(made), **fields
    )


def woven(
    kernels: float, waits: float, needs: float, cold: float, *, rows: int = 1000, rank: int = 1
) -> StepLayout:
    """A hot model on one device, which lets the cold model's compute `needs` of each decode step.

    A hot step takes max(K, W + N); N goes before the cold model's steps, which take `cold` alone.
    """
    (place, *_) = slices(load_platform("gh200"), "1x96gb")

    def work(name: str, seconds: float, on: str | None, **more: Any) -> Work:
        cost = Cost(decode=flat(seconds))
        return Work(name=name, seconds=cost, draws={} if on is None else {on: cost}, **more)

    prompts = Cost(flat(kernels))  # on the hot model's device alone
    hot = (
        Work(name="prompt", seconds=prompts, draws={"hot": prompts}),
        work("K", kernels, "hot", after=("prompt",)),
        work("W", waits, None, after=("prompt",)),
        work("N", needs, "cold", after=("W",), rank=rank),
    )
    both = Cost(flat(cold), flat(cold))
    alone = (Work(name="step", seconds=both, draws={"cold": both}),)
    lanes = [
        Lane(
            place=replace(place, name=name), kv_bytes=rows * 1000 * 114_688.0, steps={spec: (plan,)}
        )
        for name, spec, plan in (("hot", SPEC, hot), ("cold", COLD, alone))
    ]
    return StepLayout(name="woven", resources=("hot", "cold"), lanes=tuple(lanes), by_age=False)


def over(made: StepLayout, **system: Any) -> ServingSetup:
    """A setup whose models lie over a layout; another lane opens as soon as one has work."""
    settings: dict[str, Any] = {
        "layout": made, "load": Resident(start_s=0.0), "place": FirstIdle(),
        "scale": AtOutstanding(1), "chunk": Fixed(4096), "alpha": Static(0.0),
        "starts_active": True, "check_slo": False, "max_batch": 16,
    }  # fmt: skip
    specs = dict.fromkeys(name for lane in made.lanes for name in lane.steps)
    return setup(*specs, mig="1x96gb", **(settings | system))
