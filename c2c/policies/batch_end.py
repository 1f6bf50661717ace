"""Turns that last until a batch has ended."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from c2c.policies.traits import TurnTraits
from c2c.policies.turn import turn_taken, urgency

__all__ = ["BatchEnd"]

_WITHOUT_END: Final = 1e15  # decode steps


class BatchEnd(NamedTuple):
    """An engine keeps its turn until its batch ends; the earliest request chooses the next.

    Source: github.com/Zyyeric/mini-aegaeon c6bbeb6, `scheduling/colocated.py`. It needs
    `system/admit=whole_batches`.
    """

    @property
    def traits(self) -> TurnTraits:
        """Constant traits of this policy."""
        return TurnTraits(reads_token_lines=False)


@urgency.by(BatchEnd)
def _first_come(policy: BatchEnd, own: Any, row: Any, now_s: float) -> float:
    return -math.inf if row.is_last != 0 and row.decodes > 0 else row.prompt_since_s


@turn_taken.by(BatchEnd)
def _to_the_end(
    policy: BatchEnd, own: Any, table: Any, first: int, count: int, row: Any, now_s: float
) -> float:
    return _WITHOUT_END
