"""Streamed weights that stay in a slice's HBM: whole layers, or a share of every matrix."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from c2c.compiling.decision import decision
from c2c.errors import SettingError
from c2c.policies.returns import LAYERS
from c2c.policies.traits import KeepTraits

__all__ = [
    "ByShare",
    "NothingKept",
    "WhileRoom",
    "layers_to_keep",
]


@decision(returns=LAYERS)
def layers_to_keep(policy: Any, room_bytes: float, layer_bytes: float, left: int) -> int:
    """Return how many more layers the next step leaves in HBM.

    The step copies each of them ahead of its product, which costs link and HBM traffic. Where kept
    weights are spread, it is so many layers' worth, left by the products that read it.

    Args:
      policy: decides.
      room_bytes: free HBM of the slice.
      layer_bytes: weights of a layer.
      left: layers of the model that are not kept.
    """


def _check_spare(spare_bytes: float, where: str) -> None:
    if not spare_bytes >= 0.0:
        raise SettingError(f"{where}.spare_bytes", spare_bytes, "bytes, at least 0")


class NothingKept(NamedTuple):
    """Weights are streamed at every step, as in the paper."""

    @property
    def traits(self) -> KeepTraits:
        """Facts of this policy that hold at any time."""
        return KeepTraits(keeps_weights=False)


@layers_to_keep.by(NothingKept)
def _none(policy: NothingKept, room_bytes: float, layer_bytes: float, left: int) -> int:
    return 0


class WhileRoom(NamedTuple):
    """As many layers as fit beside the KV caches; they go again when a KV cache needs the room.

    Where engines of a slice have no room for each other's weights, one after the other takes it:
    a copy for many steps costs less than reading everything over the link at each.

    Ours.

    Attributes:
      spare_bytes: HBM that is left free for the next requests' KV caches.
      engines: of a slice that may have layers in HBM, those that ran last; 0: all.
      displace: a model that would have this share of its layers in HBM takes the room of other
        engines' layers, if none of those stays; inf: layers give way to KV caches only.
    """

    spare_bytes: float = 0.3e9
    engines: int = 0
    displace: float = 0.75

    def check(self, where: str) -> None:
        """Raise SettingError for a setting that cannot work."""
        _check_spare(self.spare_bytes, where)
        if self.engines < 0:
            raise SettingError(f"{where}.engines", self.engines, "a whole number, at least 0")
        if not (0.0 < self.displace <= 1.0 or self.displace == math.inf):
            raise SettingError(f"{where}.displace", self.displace, "a number in (0, 1], or inf")

    @property
    def traits(self) -> KeepTraits:
        """Facts of this policy that hold at any time."""
        return KeepTraits(engines_kept=self.engines, displacing_share=self.displace)


class ByShare(NamedTuple):
    """As much as fits beside the KV caches, as an equal share of every matrix.

    A launch reads its share from HBM and the rest over the link at the same time, where whole
    layers leave the link idle while they are read. Ours; Source: DAK (2026), the share of an
    operation's weights that stays in device memory.

    Attributes:
      spare_bytes: HBM that is left free for the next requests' KV caches.
    """

    spare_bytes: float = 1.5e9

    def check(self, where: str) -> None:
        """Raise SettingError for a setting that cannot work."""
        _check_spare(self.spare_bytes, where)

    @property
    def traits(self) -> KeepTraits:
        """Facts of this policy that hold at any time."""
        return KeepTraits(spreads_kept=True)


@layers_to_keep.by(ByShare)
@layers_to_keep.by(WhileRoom)
def _while_room(policy: Any, room_bytes: float, layer_bytes: float, left: int) -> int:
    return min(left, max(0, int((room_bytes - policy.spare_bytes) // layer_bytes)))
