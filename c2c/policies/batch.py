"""Batch scheduler of an instance."""

from __future__ import annotations

from typing import Any, NamedTuple

from c2c.compiling.decision import decision
from c2c.policies.returns import A_STEP, YES_OR_NO
from c2c.policies.traits import BatchTraits

__all__ = ["Reserved", "fill", "joins"]


@decision(returns=A_STEP)
def fill(policy: Any, w: Any, i: int, now_s: float) -> int:
    """Fill the next step of instance `i`; return its most equal steps, at least 1.

    Sets `step_tokens` of each prompt and `plan.decodes`: all or none.
    """


@decision(returns=YES_OR_NO)
def joins(policy: Any, w: Any, i: int) -> bool:
    """Return whether instance `i`'s queue head joins its batch."""


class Reserved(NamedTuple):
    """KV caches are reserved whole; prompts share decodes' steps."""

    @property
    def traits(self) -> BatchTraits:
        """Constant traits."""
        return BatchTraits(is_default=True, grows=False)
