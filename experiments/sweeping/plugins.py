"""Tells Hydra of the launcher and the sweeper that come with this project."""

from __future__ import annotations

from hydra.core.plugins import Plugins

__all__ = ["register_plugins"]


def register_plugins() -> None:
    """Register them; Hydra finds them by itself only where the checkout is the working folder."""
    from hydra_plugins.c2c_sweeping import C2cOptunaSweeper, C2cRayLauncher

    for plugin in (C2cOptunaSweeper, C2cRayLauncher):
        Plugins.instance().register(plugin)
