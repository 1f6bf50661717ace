"""Composition of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from c2c.config.layout import NAMELESS
from c2c.config.plug_ins import plug_ins, search_settings
from c2c.config.refusals import SWEEP, as_setting_error, check_choices, spelled
from c2c.config.schema import RunConf
from c2c.config.search_path import extend_search_path
from c2c.config.user_code import code_in, load_code, settings_folder
from c2c.hardware import conf_dir
from c2c.policies import DECISIONS, policy_settings

__all__ = ["config_dir", "load", "register"]


def config_dir() -> Path:
    """Return the settings folder `conf/` (see `c2c.hardware.conf_dir`)."""
    return conf_dir()


def register(code: Sequence[Path] | None = None, folder: Path | None = None) -> None:
    """Register the schema, layouts without a file and all policies in Hydra.

    Args:
      code: `code` of every run of this process, imported; None: the registered ones.
      folder: `conf` of every run; only with `code`.
    """
    plug_ins()
    extend_search_path()
    store = ConfigStore.instance()
    if code is not None:
        _own[:] = [] if folder is None else [folder]
    if code is not None or "schema.yaml" not in store.list(""):
        folders = [] if folder is None else [str(folder)]
        search_settings(folders)
        schema: Any = OmegaConf.structured(
            RunConf(code=[str(file) for file in code or ()], conf=folders)
        )
        for name in ("columns", "assignment_map"):  # whose keys are a trace's own
            OmegaConf.set_struct(schema.workload[name], False)
        store.store(name="schema", node=schema, provider="c2c")
    for name, node in NAMELESS.items():
        _store("mig", name, node)
    for setting, point in DECISIONS.items():
        for name, policy in point.policies.items():
            if _STORED.get((f"system/{setting}", name)) is not policy:
                _store(f"system/{setting}", name, policy_settings(policy), policy)


_own: list[Path] = []  # the folder of the last call of `register` with code
_STORED: dict[tuple[str, str], Any] = {}  # source of each stored choice: Hydra copies slowly


def _store(group: str, name: str, node: Any, made_of: Any = None) -> None:
    ConfigStore.instance().store(group=group, name=name, node=node, provider="c2c")
    _STORED[group, name] = made_of


def load(
    overrides: Sequence[str] = (), name: str = "config", folder: str | Path | None = None
) -> DictConfig:
    """Return the composed configuration.

    >>> load(["system=dedicated", "seed=3"]).seed
    3

    Args:
      overrides: such as "catalog=dense".
      folder: folder of the user's settings; None: the registered one.

    Raises:
      SettingError: an unknown choice or key, a wrong type, or a malformed override.
    """
    overrides = spelled(overrides, folder)
    chosen, code, settings_dir = list(overrides), None, None
    if folder is not None:
        settings_dir = settings_folder(folder, "folder")
        code = code_in(settings_dir)
        load_code(code)
    register()
    for path in [settings_dir] if settings_dir is not None else _own:
        quoted = str(path).replace("\\", "\\\\").replace("'", "\\'")
        chosen.append(f"hydra.searchpath=['file://{quoted}']")
    check_choices(overrides, SWEEP if name == "config" else None)
    outer = GlobalHydra.instance().hydra  # set inside a program that Hydra started
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="c2c"):
            composed = compose(name, overrides=chosen)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise as_setting_error(error, overrides) from error
    finally:
        GlobalHydra.instance().hydra = outer
    if code is not None:
        composed.code = [*composed.code, *map(str, code)]
        composed.conf = [*composed.conf, str(settings_dir)]
    return composed
