"""Installed plug-ins: packages whose entry point provides policies, a mechanism and settings."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from c2c.config.user_code import settings_folder
from c2c.errors import DataError, PolicyError, SettingError
from c2c.hardware import is_layout_name, search_also

__all__ = ["GROUP", "load_installed", "plug_ins", "search_settings", "source_folders"]

GROUP = "c2c.plugins"


def load_installed() -> None:
    """Import the installed plug-ins once and add their settings to Hydra's search path."""
    plug_ins()
    for plug_in in (LayoutNames, C2cPlugins):
        Plugins.instance().register(plug_in)


def search_settings(own: Iterable[str | Path]) -> None:
    """Search these folders and those of plug-ins for chips, layouts, nodes and calibrations."""
    folders = [settings_folder(folder, "conf") for folder in own]
    search_also([*folders, *_settings_of_plug_ins().values()])


class C2cPlugins(SearchPathPlugin):
    """Extension of Hydra's search path by names of layouts and the settings of plug-ins."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the source of layouts and the `conf/` folders of plug-ins."""
        search_path.append("c2c", f"{LayoutNames.scheme()}://")
        for name, folder in _settings_of_plug_ins().items():
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


def _settings_of_plug_ins() -> dict[str, Path]:
    folders = {name: _folder(module) / "conf" for name, module in plug_ins().items()}
    return {name: folder for name, folder in folders.items() if folder.is_dir()}


def source_folders(used: object) -> tuple[Path, ...]:
    """Return the folders of plug-ins that define these policies and functions.

    Their content is part of a run's key.
    """
    roots = {getattr(one, "__module__", "").partition(".")[0] for one in _flat(used)}
    return tuple(
        _folder(module)
        for module in plug_ins().values()
        if module.__name__.partition(".")[0] in roots
    )


# An entry point of the group `c2c.plugins` names a module. Importing it defines policies
# (`@place.by(...)`), its `SYSTEM` is a mechanism, and `conf/` beside it is searched for settings.
@cache
def plug_ins() -> dict[str, ModuleType]:
    """Return the modules of installed plug-ins by the names of their entry points."""
    return {point.name: _imported(point) for point in sorted(entry_points(group=GROUP))}


def _imported(point: EntryPoint) -> ModuleType:
    try:
        module = point.load()
    except (SettingError, DataError, PolicyError):
        raise
    except Exception as error:
        why = f"it cannot be imported ({type(error).__name__}: {error})"
        raise DataError(
            f"plug-in {point.name} ({point.value})", why, "Repair or uninstall it."
        ) from error
    if not isinstance(module, ModuleType) or module.__file__ is None:
        raise DataError(f"plug-in {point.name} ({point.value})", "its entry point names no module")
    return module


def _folder(module: ModuleType) -> Path:
    assert module.__file__ is not None
    return Path(module.__file__).resolve().parent


def _flat(value: object) -> tuple[object, ...]:
    inner = tuple(one for part in value for one in _flat(part)) if isinstance(value, tuple) else ()
    return (value, *inner)
