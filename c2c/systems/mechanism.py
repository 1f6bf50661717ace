"""The door of a mechanism: how a package, a plug-in or a user's file fills a system's parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from c2c.cost import Constants
from c2c.hardware import Node, Platform
from c2c.models import Deployment
from c2c.serving import SystemSpec

__all__ = ["Context", "Mechanism"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Inputs from which a mechanism prepares a system.

    Attributes:
      system: as it is so far.
      platform: the hardware, at its scale; of a node, its first GPU.
      node: GPUs with links between them, where the run has several.
      deployments: all models of the catalog.
      constants: of the cost model.
      run: all settings of the run as plain data, such as `link`.
      settings: of the mechanism, an instance of `Mechanism.settings`.
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
    """A mechanism, the `SYSTEM` of the module that it is named by.

    A run takes it by `system.<part>={mechanism: <module>, ...}`, the other keys being its settings,
    or by `system.<part>=<module>` and `<module>/<way>`.

    Attributes:
      part: of the system that it fills; it may change others as well.
      settings: a dataclass, which checks its values.
      prepare: returns the system with the part filled.
      ways: values of the setting `way`, if it has one.
      is_live: whether live workers can serve by it, too: its lanes have `layers` and `paths`.
    """

    part: Literal["start", "layout"]
    settings: type
    prepare: Callable[[Context], SystemSpec]
    ways: tuple[str, ...] = ()
    is_live: bool = False
