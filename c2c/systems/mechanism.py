"""Interface of a mechanism, which fills a part of a system."""

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
    """Inputs from which a mechanism prepares a system.

    Attributes:
      system: system as filled so far.
      platform: hardware at its scale; for a node, its first GPU.
      node: GPUs with links; None: no node.
      run: settings of the run as plain data.
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
      settings: dataclass of its settings; it checks their values.
      prepare: function that returns the system with the part filled.
      ways: allowed values of the setting `way`; empty: no such setting.
      notes: function that returns lines to print with the run.
      worker: module of its live workers; "": only the simulator serves it.
      over_chips: whether a layout lies over the run's own chips, not a node's GPUs.
    """

    part: Literal["start", "layout"]
    settings: type
    prepare: Callable[[Context], SystemSpec]
    ways: tuple[str, ...] = ()
    notes: Callable[[Context], tuple[str, ...]] = lambda _: ()
    worker: str = ""
    over_chips: bool = False


def read_gbps(context: Context) -> float:
    """Return the rate at which all slices read host memory, GB/s."""
    if context.node is None or context.node.chip is None:
        name = None if context.node is None else context.node.name
        raise SettingError(
            "node", name, "slices with system.load=stream and a layout",
            "Set node=slices and mig, such as mig=4x24gb.",
        )  # fmt: skip
    return link_gbps(context.platform.link, context.run["link"])
