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

from c2c.config.refusals import as_setting_error
from c2c.config.schema import RunConf
from c2c.hardware import conf_dir

__all__ = ["config_dir", "load", "register"]


def config_dir() -> Path:
    """Return the folder of the settings, `conf/` (see `c2c.hardware.conf_dir`)."""
    return conf_dir()


def register() -> None:
    """Tell Hydra the schema (`schema`) and the layout chosen by the system (`mig: auto`)."""
    store = ConfigStore.instance()
    store.store(name="schema", node=RunConf, provider="c2c")
    store.store(group="mig", name="auto", node={"name": "auto"}, provider="c2c")


def load(overrides: Sequence[str] = (), name: str = "config") -> DictConfig:
    """Return the composed configuration.

    >>> load(["system=serverlessllm", "seed=3"]).seed
    3

    Args:
      overrides: as on the command line, such as "catalog=dense" or "workload.requests=100".
      name: the primary file in `conf/`.

    Raises:
      SettingError: an unknown choice or key, a value of the wrong type, an override not understood.
    """
    register()
    outer = GlobalHydra.instance().hydra  # set inside a program that Hydra started
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="c2c"):
            return compose(name, overrides=list(overrides))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise as_setting_error(error, overrides) from error
    finally:
        GlobalHydra.instance().hydra = outer
