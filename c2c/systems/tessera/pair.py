"""Pair: two GPUs of a node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from c2c.cost import Source, read_constants
from c2c.cost.kernel_graph import TimedGpu, timed_node
from c2c.errors import SettingError
from c2c.hardware import Node, PeerLink, conf_dir, conf_names, load_node
from c2c.ranges import AboveZero, check_fields
from c2c.systems.tessera.work import Gpus

__all__ = ["Pair", "fitted_claims", "load_pair"]

_FITTED = "calibration/pair"


@dataclass(frozen=True, kw_only=True)  # no slots, for the cached property
class Pair:
    """Two GPUs, or slices of one, with a link.

    Attributes:
      node: of two GPUs, or two slices of one.
      right_share: factor on the right GPU's speed; 1 outside the paper's figures.
    """

    node: Node
    right_share: AboveZero = 1.0

    def __post_init__(self) -> None:
        check_fields(self, f"pair.{self.name}")
        gpus = self.node.gpus
        if len(gpus) != 2 or self.node.link(0, 1) is None:
            raise SettingError("node", self.name, "two GPUs with a link between them")

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.node.name

    @property
    def names(self) -> tuple[str, str]:
        """Names of the GPUs, with numbers if alike."""
        left, right = self.node.gpus
        return (left, right) if left != right else (f"{left} 1", f"{right} 2")

    @property
    def left(self) -> str:
        """Name of the first GPU."""
        return self.names[0]

    @property
    def right(self) -> str:
        """Name of the second GPU."""
        return self.names[1]

    @property
    def wire(self) -> PeerLink:
        """The link between them."""
        result = self.node.link(0, 1)
        assert result is not None
        return result

    @cached_property
    def gpus(self) -> tuple[TimedGpu, TimedGpu]:
        """The GPUs, left and right."""
        left, right = timed_node(self.node)
        return left, replace(right, share=self.right_share)

    def link(self, gbps: float | None = None) -> Gpus:
        """Return the planner's input, by default at the node's link rate."""
        wire = self.wire
        return Gpus.alike(
            self.names, gbps=wire.gbps if gbps is None else gbps, latency_s=wire.latency_s
        )


def load_pair(name: str) -> Pair:
    """Return a pair of the paper with its fitted constant, for figures.

    Raises:
      SettingError: no such file, an invalid value, or no pair.
      DataError: no source of the constant.
    """
    node = load_node(name)
    fitted = _fitted(node.name) if node.name in conf_names(_FITTED) else None
    return Pair(node=node) if fitted is None else Pair(node=node, right_share=fitted[0])


def fitted_claims() -> frozenset[str]:
    """Return the claims that pairs' constants are fitted to."""
    return frozenset(claim for name in conf_names(_FITTED) for claim in _fitted(name)[1].claims)


def _fitted(name: str) -> tuple[float, Source]:
    return read_constants(conf_dir() / _FITTED / f"{name}.yaml", ["right_share"])["right_share"]
