"""Installed plug-ins: entry points for policies, mechanisms, settings."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from c2c.config.user_code import settings_folder
from c2c.errors import DataError, PolicyError, SettingError
from c2c.hardware import read_yaml, search_also

__all__ = ["GROUP", "plug_ins", "search_settings", "settings_of_plug_ins", "source_folders"]

GROUP = "c2c.plugins"


def search_settings(own: Iterable[str | Path]) -> None:
    """Search folders and plug-ins for chips, layouts, nodes, calibrations."""
    folders = [settings_folder(folder, "conf") for folder in own]
    search_also([*folders, *settings_of_plug_ins().values()])
    for file in (file for folder in folders for file in (folder / "hardware").glob("*.yaml")):
        read_yaml("hardware", file.stem)  # refuses what Hydra would merge in silence


def settings_of_plug_ins() -> dict[str, Path]:
    """Return the `conf/` folders of plug-ins by name."""
    folders = {name: _folder(module) / "conf" for name, module in plug_ins().items()}
    return {name: folder for name, folder in folders.items() if folder.is_dir()}


def source_folders(used: object) -> tuple[Path, ...]:
    """Return the folders of these plug-ins, part of a run's key."""
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
    """Import the plug-ins once; return them by name."""
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
