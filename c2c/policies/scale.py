"""Scaling: further instances of a busy model."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from c2c.compiling.decision import decision
from c2c.policies.returns import YES_OR_NO
from c2c.ranges import Count, In

__all__ = [
    "AtBacklog",
    "AtOutstanding",
    "OneInstance",
    "wants_another",
]


@decision(returns=YES_OR_NO)
def wants_another(policy: Any, outstanding: int, backlog_s: float, is_full: bool) -> bool:
    """Return whether a model should get another instance.

    Args:
      backlog_s: of prompts not prefilled, alone.
      is_full: whether the request cannot join now.
    """


class OneInstance(NamedTuple):
    """One active instance a model, as in the paper."""


@wants_another.by(OneInstance)
def _never(policy: OneInstance, outstanding: int, backlog_s: float, is_full: bool) -> bool:
    return False


class AtOutstanding(NamedTuple):
    """Another instance at `at` outstanding requests of the least busy (ours)."""

    at: Count = 32


@wants_another.by(AtOutstanding)
def _at_outstanding(
    policy: AtOutstanding, outstanding: int, backlog_s: float, is_full: bool
) -> bool:  # fmt: skip
    return outstanding >= policy.at


class AtBacklog(NamedTuple):
    """Another instance after `seconds` of prompts, or a full batch (ours)."""

    seconds: Annotated[float, In("(0, inf]")] = 0.5


@wants_another.by(AtBacklog)
def _at_backlog(policy: AtBacklog, outstanding: int, backlog_s: float, is_full: bool) -> bool:
    return is_full or backlog_s >= policy.seconds
