"""Configuration of a run: schemas, `load`, `build` and `simulate`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from c2c.config.build import (
    Layout,
    RunSetup,
    build,
    build_layout,
    data_folders,
    input_files,
)
from c2c.config.cache import composed
from c2c.config.settings import Settings, checked, fits, plain_settings
from c2c.config.simulate import (
    SimulationResult,
    prefers_compiled,
    run_totals,
    simulate,
    summary_of,
)
from c2c.config.user_code import code_in, load_code, settings_folder

if TYPE_CHECKING:
    from c2c.config.compose import config_dir, load, register
    from c2c.config.keywords import Fleet, Workload, overrides_of, quoted
    from c2c.config.refusals import SWEEP, as_setting_error, check_choices, choices, spelled

__all__ = [
    "SWEEP",
    "Fleet",
    "Layout",
    "RunSetup",
    "Settings",
    "SimulationResult",
    "Workload",
    "as_setting_error",
    "build",
    "build_layout",
    "check_choices",
    "checked",
    "choices",
    "code_in",
    "composed",
    "config_dir",
    "data_folders",
    "fits",
    "input_files",
    "load",
    "load_code",
    "overrides_of",
    "plain_settings",
    "prefers_compiled",
    "quoted",
    "register",
    "run_totals",
    "settings_folder",
    "simulate",
    "spelled",
    "summary_of",
]

_HOMES = {
    **dict.fromkeys(("config_dir", "load", "register"), "compose"),
    **dict.fromkeys(("Fleet", "Workload", "overrides_of", "quoted"), "keywords"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"c2c.config.{_HOMES.get(name, 'refusals')}"), name)
