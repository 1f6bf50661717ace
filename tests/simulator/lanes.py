"""Small layouts over several devices that the tests share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from c2c.hardware import load_platform, slices
from c2c.policies import AtOutstanding, FirstIdle, Fixed, Resident, Static
from c2c.serving import Chain, Lane, ServingSetup, StepLayout, WorkCosts
from tests.simulator.worlds import setup

SPEC = "llama-3-3b"
Work = tuple[float, dict[int, float]]  # seconds alone, seconds of each resource by its number


def costs(works: Sequence[Work], resources: int) -> WorkCosts:
    """Works that take as long at every size."""
    alone = np.array([[seconds for seconds, _ in works]] * 2)
    use = np.zeros((2, len(works), resources))
    for w, (_, used) in enumerate(works):
        for k, seconds in used.items():
            use[:, w, k] = seconds
    return WorkCosts(sizes=(1, 10**6), alone_s=alone, use_s=use)


def on(resource: int, seconds: float) -> Work:
    """A work on one resource."""
    return seconds, {resource: seconds}


def layout(
    *lanes: Sequence[Sequence[Work]],
    resources: int,
    rows: int = 1000,
    hands_to: int | None = None,
    **fields: Any,
) -> StepLayout:
    """Lanes with the works of a prefill and of a decode step, a pair for each variant.

    All but those like `hands_to`, if it is given, hand their prompts to it.
    """
    (place, *_) = slices(load_platform("gh200"), "1x96gb")
    kv_bytes = rows * 1000 * 114_688.0
    made = []
    for number, variants in enumerate(lanes):
        chains = tuple(
            Chain(prefill=costs(prefill, resources), decode=costs(decode, resources))
            for prefill, decode in zip(variants[::2], variants[1::2], strict=True)
        )
        kind = next((k for k, other in enumerate(lanes[:number]) if other == variants), number)
        target = None if hands_to in (None, kind) else f"lane{hands_to}"
        made.append(Lane(place=replace(place, name=f"lane{kind}"), kv_bytes=kv_bytes,
                         chains={SPEC: chains}, hands_to=target))  # fmt: skip
    return StepLayout(
        name="test", resources=tuple(f"r{k}" for k in range(resources)), lanes=tuple(made), **fields
    )


def over(made: StepLayout, **system: Any) -> ServingSetup:
    """A setup whose one model lies over a layout; another lane opens as soon as one has work."""
    settings: dict[str, Any] = {
        "layout": made,
        "load": Resident(start_s=0.0),
        "place": FirstIdle(),
        "scale": AtOutstanding(1),
        "chunk": Fixed(4096),
        "alpha": Static(0.0),
        "starts_active": True,
        "check_slo": False,
        "max_batch": 16,
    }
    return setup(SPEC, mig="1x96gb", **(settings | system))
