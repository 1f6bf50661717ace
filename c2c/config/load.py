"""Compose a configuration from `conf/` and overrides, as the command line does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from c2c.config.layout import NAMELESS
from c2c.config.refusals import as_setting_error
from c2c.config.schema import RunConf
from c2c.config.user_code import code_in, load_code
from c2c.errors import SettingError
from c2c.hardware import conf_dir
from c2c.policies import DECISIONS, policy_settings

__all__ = ["config_dir", "load", "register"]


def config_dir() -> Path:
    """Return the folder of the settings, `conf/` (see `c2c.hardware.conf_dir`)."""
    return conf_dir()


def register() -> None:
    """Tell Hydra the schema, the layouts that no file names (`auto` and the like) and all policies.

    A policy is a choice in the group of its decision, such as `system/alpha=roofline`.
    """
    store = ConfigStore.instance()
    store.store(name="schema", node=RunConf, provider="c2c")
    for name, node in NAMELESS.items():
        store.store(group="mig", name=name, node=node, provider="c2c")
    for setting, point in DECISIONS.items():
        for name, policy in point.policies.items():
            node = policy_settings(policy)
            store.store(group=f"system/{setting}", name=name, node=node, provider="c2c")


def load(
    overrides: Sequence[str] = (), name: str = "config", folder: str | Path | None = None
) -> DictConfig:
    """Return the composed configuration.

    >>> load(["system=serverlessllm", "seed=3"]).seed
    3

    Args:
      overrides: as on the command line, such as "catalog=dense" or "workload.requests=100".
      name: the primary file in `conf/`.
      folder: a folder of own settings beside `conf/`, as `--config-dir` on the command line; Python
        files in its `system/` may define policies.

    Raises:
      SettingError: an unknown choice or key, a value of the wrong type, an override not understood.
    """
    chosen = list(overrides)
    if folder is not None:
        found = Path(folder).expanduser().resolve()
        if not found.is_dir():
            raise SettingError("folder", str(folder), "a folder of settings")
        code = code_in(found)
        load_code(code)
        chosen.append(f"hydra.searchpath=[{found.as_uri()}]")
        chosen += [f"code=[{','.join(map(repr, map(str, code)))}]"] if code else []
    register()
    outer = GlobalHydra.instance().hydra  # set inside a program that Hydra started
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="c2c"):
            return compose(name, overrides=chosen)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise as_setting_error(error, overrides) from error
    finally:
        GlobalHydra.instance().hydra = outer
