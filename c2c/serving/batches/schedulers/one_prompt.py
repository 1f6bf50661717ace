"""Prompts one after another."""

from __future__ import annotations

from typing import NamedTuple

from c2c.policies import BatchTraits, fill, joins
from c2c.serving.batches.schedulers.reserved import fill_reserved, joins_reserved
from c2c.serving.batches.scheduling import longest_prompt
from c2c.serving.tables.state import Loop

__all__ = ["OnePrompt"]


class OnePrompt(NamedTuple):
    """Decodes wait until no prompt is left; whole KV caches are reserved on joining."""

    @property
    def traits(self) -> BatchTraits:
        """Constant traits."""
        return BatchTraits(grows=False)


@fill.by(OnePrompt)
def _fill(policy: OnePrompt, w: Loop, i: int, now_s: float) -> int:
    steps = fill_reserved(w, i, now_s, False)
    for k in range(w.s.instance[i].n_prefill):
        req = w.s.request[w.s.prefilling[i, k]]
        req.step_tokens = min(req.prompt - req.prefilled, longest_prompt(w)) if k == 0 else 0
    return steps


@joins.by(OnePrompt)
def _joins(policy: OnePrompt, w: Loop, i: int) -> bool:
    return joins_reserved(w, i)
