"""Registration of this project's launcher and sweepers with Hydra."""

from __future__ import annotations

import sys
from pathlib import Path

from hydra.core.plugins import Plugins

__all__ = ["register_plugins"]

# Hydra loads plug-ins from the namespace `hydra_plugins` only; this folder holds our part of it.
DOOR = Path(__file__).parent / "door"


def register_plugins() -> None:
    """Make `hydra_plugins.c2c_sweeping` importable and register its plug-ins."""
    if str(DOOR) not in sys.path:
        sys.path.append(str(DOOR))
    from hydra_plugins.c2c_sweeping import C2cGridSweeper, C2cOptunaSweeper, C2cRayLauncher

    for plugin in (C2cGridSweeper, C2cOptunaSweeper, C2cRayLauncher):
        Plugins.instance().register(plugin)
