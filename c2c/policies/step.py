"""In how many parts a step with prompt tokens is run; alpha may change between parts."""

from __future__ import annotations

from typing import Any, NamedTuple

from c2c.compiling.decision import decision
from c2c.policies.returns import PARTS

__all__ = ["ByLayer", "Whole", "step_parts"]


@decision(returns=PARTS)
def step_parts(policy: Any, layers: int) -> int:
    """Return the parts of a step with prompt tokens of a model with so many layers."""


class Whole(NamedTuple):
    """One part: alpha changes between steps, where requests join or leave."""


@step_parts.by(Whole)
def _one(policy: Whole, layers: int) -> int:
    return 1


class ByLayer(NamedTuple):
    """A part a layer: alpha changes between the layers of a prefill, too."""


@step_parts.by(ByLayer)
def _a_layer(policy: ByLayer, layers: int) -> int:
    return layers
