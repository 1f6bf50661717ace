"""Which waiting requests join the running batch, and how a step's token budget is shared."""

from __future__ import annotations

from typing import Any, NamedTuple

from c2c.policies.decision import decision, jitable
from c2c.policies.returns import JOINS

__all__ = ["ReserveAll", "may_join", "prefill_share"]


@decision(returns=JOINS)
def may_join(policy: Any, need_bytes: float, room_bytes: float, batch: int, max_batch: int) -> bool:
    """Return whether the request at the head of the queue joins the batch now.

    Args:
      policy: decides.
      need_bytes: KV cache of the whole request, prompt and output.
      room_bytes: what the slice has left for KV caches.
      batch: requests in the batch.
      max_batch: most of them.
    """


class ReserveAll(NamedTuple):
    """Where its whole KV cache fits, prompt and output, and the batch has a place.

    All of it is reserved on joining, so a running request is never preempted for memory; a request
    that does not fit waits in order.
    """


@may_join.by(ReserveAll)
def _reserve_all(
    policy: ReserveAll, need_bytes: float, room_bytes: float, batch: int, max_batch: int
) -> bool:  # fmt: skip
    return need_bytes <= room_bytes and batch < max_batch


@jitable
def prefill_share(budget_left: int, prompt_left: int) -> int:
    """Return how many prompt tokens of the next request go into this step (first come first)."""
    return min(budget_left, prompt_left)
