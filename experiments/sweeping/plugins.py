"""Tells Hydra of the launcher and the sweeper that come with this project."""

from __future__ import annotations

import sys
from pathlib import Path

from hydra.core.plugins import Plugins

__all__ = ["register_plugins"]

# Hydra takes plug-ins from the namespace `hydra_plugins` only; this folder holds our part of it.
DOOR = Path(__file__).parent / "door"


def register_plugins() -> None:
    """Open the door and register what is behind it."""
    if str(DOOR) not in sys.path:
        sys.path.append(str(DOOR))
    from hydra_plugins.c2c_sweeping import C2cOptunaSweeper, C2cRayLauncher

    for plugin in (C2cOptunaSweeper, C2cRayLauncher):
        Plugins.instance().register(plugin)
