"""The default with prompts or decodes in a step."""

from __future__ import annotations

from typing import NamedTuple

from c2c.policies import BatchTraits, fill, joins
from c2c.serving.batches.schedulers.reserved import fill_reserved, joins_reserved
from c2c.serving.tables.state import Loop

__all__ = ["PromptsAlone"]


class PromptsAlone(NamedTuple):
    """Decodes wait until no prompt is left; whole KV caches are reserved on joining."""

    @property
    def traits(self) -> BatchTraits:
        """Constant traits."""
        return BatchTraits(grows=False)


@fill.by(PromptsAlone)
def _fill(policy: PromptsAlone, w: Loop, i: int, now_s: float) -> int:
    return fill_reserved(w, i, now_s, False)


@joins.by(PromptsAlone)
def _joins(policy: PromptsAlone, w: Loop, i: int) -> bool:
    return joins_reserved(w, i)
