"""Cost tables of all (model, slice type) pairs stacked, and the cost of one planned step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from c2c.cost import StepTable

__all__ = ["CostTables", "stack_tables", "step_alone_s", "step_bytes", "step_growth_s"]


class CostTables(NamedTuple):
    """`c2c.cost.StepTable`s stacked; axis 0 is the pair arch * kinds + kind."""

    body_s: Any  # f8[P, T+1, A]
    body_link: Any
    body_hbm: Any
    head_s: Any  # f8[P, R+1, A]
    head_link: Any
    head_hbm: Any
    overhead_s: Any  # f8[P]
    kv_read_s: Any
    pair_s: Any
    kv_bytes: Any
    window: Any  # i8[P], 0: full attention
    kinds: int


def stack_tables(tables: Sequence[Sequence[StepTable]]) -> CostTables:
    """Return the stack of `tables[arch][kind]`; all must share one shape."""
    flat = [t for row in tables for t in row]

    def per_pair(field: str, dtype: type = np.float64) -> np.ndarray:
        return np.array([getattr(t, field) for t in flat], dtype)

    return CostTables(
        body_s=np.stack([t.body_s for t in flat]),
        body_link=np.stack([t.body_link_bytes for t in flat]),
        body_hbm=np.stack([t.body_hbm_bytes for t in flat]),
        head_s=np.stack([t.head_s for t in flat]),
        head_link=np.stack([t.head_link_bytes for t in flat]),
        head_hbm=np.stack([t.head_hbm_bytes for t in flat]),
        overhead_s=per_pair("step_overhead_s"),
        kv_read_s=per_pair("kv_read_s_per_token"),
        pair_s=per_pair("attn_s_per_pair"),
        kv_bytes=per_pair("kv_bytes_per_token"),
        window=per_pair("sliding_window", np.int64),
        kinds=len(tables[0]),
    )


@register_jitable
def step_alone_s(costs: CostTables, pair: int, plan: Any, variant: int) -> float:
    """Return the seconds of the plan's first step with the link to itself.

    Args:
      plan: a row of `state.INSTANCE_DTYPE` whose `plan_*` fields are set.
      variant: position on the alpha grid.

    Source: `c2c.cost.step_time` in closed form; a test holds the two equal.
    """
    tokens = plan.plan_prefill + plan.plan_decodes
    prefill = max(
        costs.pair_s[pair] * plan.plan_pairs, costs.kv_read_s[pair] * plan.plan_prefill_kv
    )
    return float(
        costs.body_s[pair, tokens, variant]
        + costs.head_s[pair, plan.plan_rows, variant]
        + costs.overhead_s[pair]
        + costs.kv_read_s[pair] * plan.plan_decode_kv
        + prefill
    )


@register_jitable
def step_growth_s(costs: CostTables, pair: int, plan: Any) -> float:
    """Return by how many seconds each following decode step is longer than the one before."""
    return float(costs.kv_read_s[pair] * plan.plan_growth)


@register_jitable
def step_bytes(costs: CostTables, pair: int, plan: Any, variant: int) -> tuple[float, float, float]:
    """Return link bytes a step, HBM bytes of the first step, and their growth a step."""
    tokens = plan.plan_prefill + plan.plan_decodes
    link = costs.body_link[pair, tokens, variant] + costs.head_link[pair, plan.plan_rows, variant]
    hbm = (
        costs.body_hbm[pair, tokens, variant]
        + costs.head_hbm[pair, plan.plan_rows, variant]
        + costs.kv_bytes[pair] * (plan.plan_decode_kv + plan.plan_prefill_kv)
    )
    return link, hbm, costs.kv_bytes[pair] * plan.plan_growth
