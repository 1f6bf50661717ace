"""Cost tables of (model, slice type) pairs, and a step's cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from c2c.cost import StepTable, cache_places
from c2c.models import CacheShape
from c2c.policies import inlined, jitable

__all__ = [
    "CostTables",
    "KeptTables",
    "decode_alone_s",
    "held_places",
    "prompt_alone_s",
    "shape_of",
    "stack_tables",
    "step_alone_s",
    "step_bytes",
    "step_growth_s",
]

# Columns of `CostTables.filled`.
COPIED: Final = 0
KEPT: Final = 1
# Columns of `CostTables.reads` and `holds`.
FULL: Final = 0
STATE: Final = 3


class KeptTables(NamedTuple):
    """Step tables with weights copied ahead, and with weights in HBM."""

    copied: StepTable
    kept: StepTable


class CostTables(NamedTuple):
    """`c2c.cost.StepTable`s stacked; axis 0 is the pair arch * kinds + kind."""

    body_s: Any  # f8[P, T+1, A]
    body_link: Any
    body_hbm: Any
    head_s: Any  # f8[P, R+1, A]
    head_link: Any
    head_hbm: Any
    # f8[P, T+1, 2, 3] and [P, R+1, 2, 3]: weights (COPIED, KEPT); seconds, link and HBM bytes.
    # Empty where no weights are ever kept.
    filled_body: Any
    filled_head: Any
    overhead_s: Any  # f8[P]
    kv_read_s: Any  # a place that attention reads, see `c2c.models.CacheShape`
    decode_read_s: Any  # a place that a decode reads, by the model and its draft
    decode_reads: Any  # reads of a place for a token of a decode
    pair_s: Any  # a pair of a query and a place
    prefill_attention_s: Any  # f8[P, T+1] of a chunk's tokens, beside its pairs
    decode_attention_s: Any  # f8[P, T+1] of the sequences that decode, beside their cache
    kv_bytes: Any  # a place
    passes: Any  # f8[P] of the model for a token of a decode, see `c2c.cost.StepTable`
    verified: Any  # i8[P] drafted tokens of a decode that a pass computes
    draft_bytes: Any  # f8[P] weights that the draft reads
    decode_s: Any  # f8[P] a step of one decode alone
    prompt_s: Any  # f8[P] a prompt token in a long chunk alone
    reads: Any  # i8[P, 4], a `CacheShape`: places that attention reads
    holds: Any  # i8[P, 4], a `CacheShape`: places that a request reserves
    kinds: int


def stack_tables(
    tables: Sequence[Sequence[StepTable]],
    kept_tables: Sequence[Sequence[KeptTables]] = (),
    *,
    variant: int = 0,
    holds_windows: bool = True,
) -> CostTables:
    """Return the stack of `tables[arch][kind]` of one shape."""
    flat = [t for row in tables for t in row]
    filled = [t for row in kept_tables for t in row]
    chunk = min(1024, *(t.max_tokens for t in flat))

    def per_pair(field: str) -> np.ndarray:
        return np.array([getattr(t, field) for t in flat], np.float64)

    holds, places = [t.cache for t in flat], per_pair("token_places")
    passes, rows = per_pair("passes"), [1 + t.verified for t in flat]
    one = [t.body_s[n, variant] + t.head_s[n, variant] for t, n in zip(flat, rows, strict=True)]
    if not holds_windows:
        holds = [CacheShape(c.full + c.windowed, 0, 0, c.state) for c in holds]

    return CostTables(
        body_s=np.stack([t.body_s for t in flat]),
        body_link=np.stack([t.body_link_bytes for t in flat]),
        body_hbm=np.stack([t.body_hbm_bytes for t in flat]),
        head_s=np.stack([t.head_s for t in flat]),
        head_link=np.stack([t.head_link_bytes for t in flat]),
        head_hbm=np.stack([t.head_hbm_bytes for t in flat]),
        filled_body=_filled(filled, "body"),
        filled_head=_filled(filled, "head"),
        overhead_s=per_pair("step_overhead_s"),
        kv_read_s=per_pair("kv_read_s_per_token") / places,
        decode_read_s=per_pair("decode_read_s_per_token") / places,
        decode_reads=per_pair("decode_reads"),
        pair_s=per_pair("attn_s_per_pair") / places,
        prefill_attention_s=np.stack([t.prefill_attention_s for t in flat]),
        decode_attention_s=np.stack([t.decode_attention_s for t in flat]),
        kv_bytes=per_pair("kv_bytes_per_token") / places,
        passes=passes,
        verified=np.array([t.verified for t in flat], np.int64),
        draft_bytes=per_pair("draft_bytes"),
        decode_s=passes * np.array(one),
        prompt_s=np.array([t.body_s[chunk, variant] / chunk for t in flat]),
        reads=np.array([t.reads for t in flat], np.int64),
        holds=np.array(holds, np.int64),
        kinds=len(tables[0]),
    )


@inlined
def shape_of(shapes: Any, pair: int) -> CacheShape:
    """Return a row of `CostTables.reads` or `holds`."""
    return CacheShape(shapes[pair, 0], shapes[pair, 1], shapes[pair, 2], shapes[pair, 3])


@inlined
def held_places(costs: CostTables, pair: int, tokens: int) -> int:
    """Return the KV positions reserved for so many tokens."""
    return int(cache_places(tokens, shape_of(costs.holds, pair)) + costs.holds[pair, STATE])


def _filled(tables: Sequence[KeptTables], part: str) -> np.ndarray:
    if not tables:
        return np.zeros((0, 0, 2, 3))
    fields = [f"{part}_{suffix}" for suffix in ("s", "link_bytes", "hbm_bytes")]
    return np.array(
        [
            [[getattr(t, f)[:, 0] for f in fields] for t in (pair.copied, pair.kept)]
            for pair in tables
        ]
    ).transpose(0, 3, 1, 2).copy()  # fmt: skip


@inlined
def _pass(costs: CostTables, pair: int, plan: Any) -> tuple[float, int, int]:
    # The part of a pass that a step is, with the tokens and rows of a whole one.
    if plan.decodes == 0:
        return 1.0, plan.prefill, plan.rows
    more = plan.decodes * costs.verified[pair]
    tokens = int(plan.prefill / costs.passes[pair] + 0.5) + plan.decodes + more
    return costs.passes[pair], tokens, plan.rows + more


@inlined
def step_alone_s(costs: CostTables, pair: int, plan: Any, layers: int, variant: int) -> float:
    """Return the seconds of a plan's first step, alone on the link.

    Args:
      layers: `plan.kept` are read from HBM, `plan.copied` copied there first.
      variant: index on the alpha grid.
    """
    passes, tokens, rows = _pass(costs, pair, plan)
    calls = (
        costs.prefill_attention_s[pair, plan.prefill] + costs.decode_attention_s[pair, plan.decodes]
    )
    prefill = max(costs.pair_s[pair] * plan.pairs, costs.kv_read_s[pair] * plan.prefill_kv) + calls
    if plan.kept + plan.copied == 0:
        return float(
            passes
            * (
                costs.body_s[pair, tokens, variant]
                + costs.head_s[pair, rows, variant]
                + costs.overhead_s[pair]
            )
            + costs.decode_read_s[pair] * plan.decode_kv
            + prefill
            + plan.adapter_s
        )
    body = costs.body_s[pair, tokens, variant]
    head = costs.head_s[pair, rows, variant]
    gemms = passes * _mixed(costs, pair, plan, layers, tokens, rows, 0, body, head)
    attention = passes * costs.overhead_s[pair]
    attention += costs.decode_read_s[pair] * plan.decode_kv + prefill
    return float(gemms + attention + plan.adapter_s)


@jitable
def _mixed(
    costs: CostTables, pair: int, plan: Any, layers: int, tokens: int, rows: int, quantity: int,
    body: float, head: float,
) -> float:  # fmt: skip
    # Layers run one after another, so seconds and bytes of streamed, copied and kept ones add up.
    # The head counts with the last layer.
    streamed = layers - plan.kept - plan.copied
    total = (
        streamed * body
        + plan.copied * costs.filled_body[pair, tokens, COPIED, quantity]
        + plan.kept * costs.filled_body[pair, tokens, KEPT, quantity]
    ) / layers
    if streamed > 0:
        return float(total + head)
    which = COPIED if plan.copied > 0 else KEPT
    return float(total + costs.filled_head[pair, rows, which, quantity])


@jitable
def prompt_alone_s(costs: CostTables, pair: int, tokens: int) -> float:
    """Return the seconds of prompt tokens alone, at the first alpha."""
    most = costs.body_s.shape[1] - 1
    row = max(0, min(tokens, most))
    alone_s = costs.body_s[pair, row, 0] + costs.prefill_attention_s[pair, row]
    return float(alone_s * max(1.0, tokens / most))


@jitable
def decode_alone_s(costs: CostTables, pair: int, rows: int, cached: int) -> float:
    """Return a decode step's seconds by sequences and KV positions."""
    width = 1 + costs.verified[pair]
    most = min(costs.body_s.shape[1], costs.head_s.shape[1]) - 1
    n = min(rows, most // width)
    alone_s = costs.body_s[pair, n * width, 0] + costs.head_s[pair, n * width, 0]
    alone_s = costs.passes[pair] * (alone_s + costs.overhead_s[pair])
    return float(alone_s + costs.decode_read_s[pair] * cached + costs.decode_attention_s[pair, n])


@inlined
def step_growth_s(costs: CostTables, pair: int, plan: Any) -> float:
    """Return the seconds added by each following decode step."""
    return float(costs.decode_read_s[pair] * plan.growth)


@inlined
def step_bytes(
    costs: CostTables, pair: int, plan: Any, layers: int, variant: int
) -> tuple[float, float, float]:
    """Return a step's link bytes, and HBM bytes with their growth."""
    passes, tokens, rows = _pass(costs, pair, plan)
    states = 2 * costs.reads[pair, STATE] * (plan.decodes + plan.prefills)  # read and written
    reads = costs.decode_reads[pair]
    kv = costs.kv_bytes[pair] * (reads * plan.decode_kv + plan.prefill_kv + states)
    kv += plan.adapter_hbm_bytes
    if plan.decodes > 0:
        kv += costs.draft_bytes[pair]
    growth = reads * costs.kv_bytes[pair] * plan.growth
    if plan.kept + plan.copied == 0:
        link = costs.body_link[pair, tokens, variant] + costs.head_link[pair, rows, variant]
        hbm = costs.body_hbm[pair, tokens, variant] + costs.head_hbm[pair, rows, variant]
        return passes * link + plan.adapter_link_bytes, passes * hbm + kv, growth
    link = _mixed(
        costs, pair, plan, layers, tokens, rows, 1,
        costs.body_link[pair, tokens, variant], costs.head_link[pair, rows, variant],
    )  # fmt: skip
    hbm = _mixed(
        costs, pair, plan, layers, tokens, rows, 2,
        costs.body_hbm[pair, tokens, variant], costs.head_hbm[pair, rows, variant],
    )  # fmt: skip
    return passes * link + plan.adapter_link_bytes, passes * hbm + kv, growth
