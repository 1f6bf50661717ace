"""Admission of waiting requests to the running batch."""

from __future__ import annotations

from typing import Any, NamedTuple

from c2c.compiling.decision import decision, jitable
from c2c.errors import SettingError
from c2c.policies.returns import JOINS
from c2c.policies.traits import AdmitTraits
from c2c.ranges import Share, SomeShare

__all__ = [
    "ReserveAll",
    "WholeBatches",
    "WithinQuota",
    "may_join",
    "prefill_share",
]


@decision(returns=JOINS)
def may_join(policy: Any, need_bytes: float, room_bytes: float, batch: int, max_batch: int) -> bool:
    """Return whether the queue's head joins the batch.

    Args:
      need_bytes: the request's KV cache, prompt and output.
      room_bytes: free for KV caches, within the model's quota.
    """


class ReserveAll(NamedTuple):
    """Admission of a request whose whole KV cache fits, in a batch with room.

    All of it is reserved, so that no running request is preempted for memory.
    """


class WithinQuota(NamedTuple):
    """`ReserveAll` within bounds for each model of a slice (ours).

    They apply from a model's second concurrent request.

    Attributes:
      floor: share of the slice's KV room that each model leaves to each other one.
      ceiling: share of the slice's KV room that one model may have.
    """

    floor: Share = 0.05
    ceiling: SomeShare = 1.0

    def check(self, where: str) -> None:
        """Raise SettingError for a setting that cannot work."""
        if self.floor > self.ceiling:
            allowed = f"a share from 0 to ceiling={self.ceiling}"
            raise SettingError(f"{where}.floor", self.floor, allowed)

    @property
    def traits(self) -> AdmitTraits:
        """Constant traits of this policy."""
        return AdmitTraits(kv_floor=self.floor, kv_ceiling=self.ceiling)


class WholeBatches(NamedTuple):
    """`ReserveAll` without continuous batching: none joins a decoding batch."""

    @property
    def traits(self) -> AdmitTraits:
        """Constant traits of this policy."""
        return AdmitTraits(joins_decodes=False)


@may_join.by(ReserveAll)
@may_join.by(WholeBatches)
@may_join.by(WithinQuota)
def _reserve(
    policy: ReserveAll | WholeBatches | WithinQuota, need_bytes: float, room_bytes: float,
    batch: int, max_batch: int,
) -> bool:  # fmt: skip
    return need_bytes <= room_bytes and batch < max_batch


@jitable
def prefill_share(budget_left: int, prompt_left: int) -> int:
    """Return the next request's prompt tokens in this step."""
    return min(budget_left, prompt_left)
