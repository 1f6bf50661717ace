"""Hydra's search path: layouts' names, plug-ins' settings."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from c2c.config.plug_ins import settings_of_plug_ins
from c2c.hardware import is_layout_name

__all__ = ["extend_search_path"]


def extend_search_path() -> None:
    """Let Hydra find layouts and plug-ins."""
    for plug_in in (LayoutNames, C2cPlugins):
        Plugins.instance().register(plug_in)


class C2cPlugins(SearchPathPlugin):
    """Names of layouts and plug-ins in Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the source of layouts and plug-ins' `conf/`."""
        search_path.append("c2c", f"{LayoutNames.scheme()}://")
        for name, folder in settings_of_plug_ins().items():
            search_path.append(f"c2c.plugins.{name}", f"file://{folder}")


class LayoutNames(ConfigSource):
    """Choices of `mig` by profiles, without files."""

    @staticmethod
    def scheme() -> str:
        """Return this source's prefix."""
        return "layout-names"

    def load_config(self, config_path: str) -> ConfigResult:
        """Return a layout's settings: its name."""
        name = config_path.rpartition("/")[2].removesuffix(".yaml")
        config = OmegaConf.create({"name": name})
        return ConfigResult(self.provider, self.path, config, header={"package": None})

    def available(self) -> bool:
        """Return True, as names need no folder."""
        return True

    def is_group(self, config_path: str) -> bool:
        """Return whether this is the group of layouts."""
        return config_path.rstrip("/") == "mig"

    def is_config(self, config_path: str) -> bool:
        """Return whether a choice is a layout's name, of any chip."""
        group, _, name = config_path.rpartition("/")
        return group == "mig" and is_layout_name(name.removesuffix(".yaml"))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:  # noqa: ARG002
        """Return none: names have no end."""
        return []
