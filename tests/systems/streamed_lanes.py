"""A user's mechanism: a lane a slice, each with a model whose weights are read over the link."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from c2c.cost import step_table
from c2c.hardware import link_gbps
from c2c.serving import Cost, Curve, Lane, StepLayout, SystemSpec, Work
from c2c.systems.mechanism import Context, Mechanism


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Settings: number of alphas, each a variant of a step."""

    alphas: int = 17


def _curve(sizes: Any, values: Any) -> Curve:
    return Curve(tuple(map(int, sizes)), np.asarray(values, np.float64))


def _prepare(context: Context) -> SystemSpec:
    system, node, rows = context.system, context.node, context.system.max_batch
    whole = link_gbps(context.platform.link, context.run["link"])
    tokens, alphas = system.chunk.tokens + rows, np.linspace(0.0, 1.0, context.settings.alphas)
    lanes = []
    for k, (one, part) in enumerate(zip(context.deployments, node.parts, strict=True)):  # type: ignore[union-attr]
        table = step_table(
            one.spec, part, context.constants, whole, max_tokens=tokens, max_rows=rows,
            alphas=alphas, weights="host",
        )  # fmt: skip
        n, r = np.arange(1, tokens + 1), np.arange(1, rows + 1)
        head = np.minimum(n, rows)
        plans = []
        for a in range(len(alphas)):
            once_s = table.body_s[n, a] + table.head_s[head, a] + table.step_overhead_s
            moved = table.body_link_bytes[n, a] + table.head_link_bytes[head, a]
            cost = Cost(
                tokens=_curve(n, once_s), prefill=_curve(n, table.prefill_attention_s[n]),
                decode=_curve(r, table.decode_attention_s[r]), cached=table.kv_read_s_per_token,
            )  # fmt: skip
            draws = {"link": Cost(tokens=_curve(n, moved)), f"gpu{k}": cost}
            plans.append((Work(name="step", seconds=cost, draws=draws),))
        place = replace(part, name=f"{part.name} {k}")
        room = part.hbm_bytes - system.hbm_reserve_bytes
        lanes.append(Lane(place=place, steps={one.spec.name: tuple(plans)}, kv_bytes=room))
    names = tuple(f"gpu{k}" for k in range(len(lanes)))
    layout = StepLayout(
        name="slices", resources=names, lanes=tuple(lanes), by_age=False, streams=True
    )
    return replace(system, layout=layout)


SYSTEM = Mechanism(part="layout", settings=Slices, prepare=_prepare)
