"""Keeping of streamed layers in a slice's HBM."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from c2c.compiling.decision import decision
from c2c.policies.returns import LAYERS
from c2c.policies.traits import KeepTraits
from c2c.ranges import In, Index

__all__ = [
    "NothingKept",
    "WhileRoom",
    "layers_to_keep",
]


@decision(returns=LAYERS)
def layers_to_keep(policy: Any, room_bytes: float, layer_bytes: float, left: int) -> int:
    """Return the further layers that the next step leaves in HBM.

    Args:
      left: layers of the model not yet kept.
    """


class NothingKept(NamedTuple):
    """No kept weights: every step streams all."""

    @property
    def traits(self) -> KeepTraits:
        """Constant traits of this policy."""
        return KeepTraits(keeps_weights=False)


@layers_to_keep.by(NothingKept)
def _none(policy: NothingKept, room_bytes: float, layer_bytes: float, left: int) -> int:
    return 0


class WhileRoom(NamedTuple):
    """Keeping of layers that fit beside KV caches, which may reclaim the room (ours).

    Attributes:
      spare_bytes: bytes of HBM left free for later KV caches.
      engines: a slice's engines with layers in HBM, those that ran last; 0: all.
      displace: share of its layers in HBM from which a model may take other engines' room; inf:
        never.
    """

    spare_bytes: Annotated[float, In("[0, inf]")] = 0.3e9
    engines: Index = 0
    displace: Annotated[float, In("(0, 1]", or_inf=True)] = 0.75

    @property
    def traits(self) -> KeepTraits:
        """Constant traits of this policy."""
        return KeepTraits(engines_kept=self.engines, displacing_share=self.displace)


@layers_to_keep.by(WhileRoom)
def _while_room(policy: WhileRoom, room_bytes: float, layer_bytes: float, left: int) -> int:
    return min(left, max(0, int((room_bytes - policy.spare_bytes) // layer_bytes)))
