"""Interface of a mechanism that fills a part of a system."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from c2c.cost import Constants
from c2c.errors import SettingError
from c2c.hardware import Node, Platform, link_gbps
from c2c.models import Deployment
from c2c.serving import SystemSpec

__all__ = ["Context", "Mechanism", "read_gbps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A mechanism's inputs.

    Attributes:
      system: as filled so far.
      platform: scaled hardware; of a node, its first GPU.
      node: GPUs with links; None: no node.
      run: the run's settings as plain data.
      settings: the mechanism's own, an instance of `Mechanism.settings`.
    """

    system: SystemSpec
    platform: Platform
    node: Node | None
    deployments: tuple[Deployment, ...]
    constants: Constants
    run: Mapping[str, Any]
    settings: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """A mechanism, a module's constant `SYSTEM`; `system.<part>=<module>` selects it.

    Attributes:
      part: part of the system that it fills.
      settings: dataclass that checks their values.
      prepare: returns the system with the part.
      ways: allowed values of the setting `way`; empty: no such setting.
      notes: returns lines to print.
      worker: module of live workers; "": simulations alone.
      over_chips: whether a layout is over the run's chips, not a node's GPUs.
    """

    part: Literal["start", "layout"]
    settings: type
    prepare: Callable[[Context], SystemSpec]
    ways: tuple[str, ...] = ()
    notes: Callable[[Context], tuple[str, ...]] = lambda _: ()
    worker: str = ""
    over_chips: bool = False

    def __post_init__(self) -> None:
        if self.part not in ("start", "layout"):
            raise SettingError("mechanism.part", self.part, "start or layout")


def read_gbps(context: Context) -> float:
    """Return slices' total rate of host memory, GB/s."""
    if context.node is None or context.node.chip is None:
        name = None if context.node is None else context.node.name
        raise SettingError(
            "node", name, "slices with system.load=stream and a layout",
            "Set node=slices and mig, such as mig=4x24gb.",
        )  # fmt: skip
    return link_gbps(context.platform.link, context.run["link"])
