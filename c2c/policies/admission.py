"""Which waiting requests join the running batch, and how a step's token budget is shared."""

from __future__ import annotations

from numba.extending import register_jitable

__all__ = ["may_join", "prefill_share"]


@register_jitable
def may_join(
    kv_used: int, kv_capacity: int, request_tokens: int, batch: int, max_batch: int
) -> bool:
    """Return whether the request at the head of the queue joins the batch now.

    The whole KV cache of the request (prompt plus output tokens) is reserved when it joins, so
    a running request is never preempted; a request that does not fit waits in order.
    """
    return kv_used + request_tokens <= kv_capacity and batch < max_batch


@register_jitable
def prefill_share(budget_left: int, prompt_left: int) -> int:
    """Return how many prompt tokens of the next request go into this step (first come first)."""
    return min(budget_left, prompt_left)
