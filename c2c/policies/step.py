"""Steps with prompt tokens: their parts, between which alpha may change, and their decodes."""

from __future__ import annotations

from typing import Any, NamedTuple

from c2c.compiling.decision import decision
from c2c.policies.returns import PARTS
from c2c.policies.traits import StepTraits

__all__ = ["ByLayer", "PromptsAlone", "Whole", "step_parts"]


@decision(returns=PARTS)
def step_parts(policy: Any, layers: int) -> int:
    """Return the number of parts of a step with prompt tokens for a model with so many layers."""


class Whole(NamedTuple):
    """One part: alpha changes between steps, where requests join or leave."""


class PromptsAlone(NamedTuple):
    """One part, without decodes: prompts go first, and decodes wait until no prompt is left.

    Source: SGLang's server arguments; its `enable_mixed_chunk` puts both into a step.
    """

    @property
    def traits(self) -> StepTraits:
        """Constant traits of this policy."""
        return StepTraits(mixes=False)


@step_parts.by(PromptsAlone)
@step_parts.by(Whole)
def _one(policy: PromptsAlone | Whole, layers: int) -> int:
    return 1


class ByLayer(NamedTuple):
    """A part for each layer: alpha may also change between the layers of a prefill."""


@step_parts.by(ByLayer)
def _a_layer(policy: ByLayer, layers: int) -> int:
    return layers
