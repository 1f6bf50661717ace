"""Costs of decodes with drafted tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from c2c.cost.step import StepTable

__all__ = ["speculated", "tokens_a_pass"]


def tokens_a_pass(tokens: int, acceptance: float) -> float:
    """Return the mean tokens that a pass of the model yields for one sequence.

    Args:
      tokens: drafts that a pass verifies.
      acceptance: probability of a draft after accepted ones.

    Source: Leviathan et al., arXiv:2211.17192, equation 1.
    """
    return float(sum(acceptance**k for k in range(tokens + 1)))


def speculated(
    table: StepTable, tokens: int, acceptance: float, draft: StepTable | None, draft_bytes: float
) -> StepTable:
    """Return the costs of steps that yield one mean token a decode.

    Args:
      table: with rows for a whole pass.
      tokens: drafts of a decode that a pass verifies.
      draft: costs of the draft; None: none.
      draft_bytes: weights that a draft step reads.
    """
    passes = 1.0 / tokens_a_pass(tokens, acceptance)
    table = replace(
        table, passes=passes, verified=tokens,
        decode_attention_s=passes * table.decode_attention_s,
    )  # fmt: skip
    if draft is None:
        return table
    rows = np.arange(len(table.decode_attention_s))
    one_s = draft.body_s[rows, 0] + draft.head_s[np.minimum(rows, draft.max_rows), 0]
    one_s = (one_s + draft.step_overhead_s + draft.decode_attention_s) * (rows > 0)
    steps = passes * tokens
    return replace(
        table,
        decode_attention_s=table.decode_attention_s + steps * one_s,
        prefill_attention_s=table.prefill_attention_s
        + draft.body_s[:, 0] + draft.prefill_attention_s,
        draft_read_s_per_token=steps * draft.kv_read_s_per_token,
        draft_kv_reads=steps * draft.kv_bytes_per_token / max(1, table.kv_bytes_per_token),
        draft_bytes=steps * draft_bytes,
    )  # fmt: skip
