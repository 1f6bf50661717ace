"""Hydra's search path: names of MIG layouts, and settings of installed plug-ins."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from c2c.config.installed import settings_of_plug_ins
from c2c.hardware import is_layout_name

__all__ = ["extend_search_path"]


def extend_search_path() -> None:
    """Let Hydra search layouts by name and the settings of plug-ins."""
    for plug_in in (LayoutNames, C2cPlugins):
        Plugins.instance().register(plug_in)


class C2cPlugins(SearchPathPlugin):
    """Extension of Hydra's search path by names of layouts and the settings of plug-ins."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the source of layouts and the `conf/` folders of plug-ins."""
        search_path.append("c2c", f"{LayoutNames.scheme()}://")
        for name, folder in settings_of_plug_ins().items():
            search_path.append(f"c2c.plugins.{name}", f"file://{folder}")


class LayoutNames(ConfigSource):
    """Choices of Hydra's group `mig` that need no file: a layout's name says its profiles."""

    @staticmethod
    def scheme() -> str:
        """Return the prefix of this source in a search path."""
        return "layout-names"

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the settings of a layout: its name."""
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
        """Return whether a choice is a layout's name; whether a chip has it, is checked later."""
        group, _, name = config_path.rpartition("/")
        return group == "mig" and is_layout_name(name.removesuffix(".yaml"))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:  # noqa: ARG002
        """Return no names, as there is no end of them."""
        return []
