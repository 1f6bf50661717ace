"""Launcher and sweepers as plug-ins, which Hydra loads from `hydra_plugins`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

# Hydra imports this at every start: import heavy modules later. See docs/design/experiments.md.
__all__ = ["C2cGridSweeper", "C2cOptunaSweeper", "C2cRayLauncher"]


class _C2cSweeper(Sweeper):
    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context = hydra_context
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )


class C2cGridSweeper(_C2cSweeper):
    """Sweeper of all combinations of values; see `experiments.sweeping.grid_sweep`."""

    def sweep(self, arguments: list[str]) -> Any:
        """Run all points and return their results."""
        from experiments.sweeping.grid_sweep import run_grid

        assert self.config is not None
        assert self.launcher is not None
        assert self.hydra_context is not None
        loader = self.hydra_context.config_loader
        return run_grid(arguments, self.config, loader, self.launcher.launch, **self._settings)


class C2cOptunaSweeper(_C2cSweeper):
    """Sweeper of `hydra/sweeper=optuna`; see `experiments.sweeping.optuna_search`."""

    def sweep(self, arguments: list[str]) -> Any:
        """Run the search and return Optuna's study."""
        from experiments.sweeping.optuna_search import SearchSettings, search

        assert self.config is not None
        assert self.launcher is not None
        settings = SearchSettings.of(self._settings)
        return search(settings, arguments, self.launcher.launch, str(self.config.hydra.sweep.dir))


class C2cRayLauncher(Launcher):
    """Launcher of `hydra/launcher=ray`; see `experiments.sweeping.ray_points`."""

    def __init__(self, init: Any = None, remote: Any = None) -> None:
        self._init: Any = OmegaConf.to_container(OmegaConf.create(init or {}), resolve=True)
        self._remote: Any = OmegaConf.to_container(OmegaConf.create(remote or {}), resolve=True)

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Store Hydra's context, configuration and task function."""
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the points of a batch and return their results."""
        from experiments.sweeping.ray_points import launch

        assert self.config is not None
        assert self.hydra_context is not None
        assert self.task_function is not None
        return launch(
            job_overrides,
            initial_job_idx,
            hydra_context=self.hydra_context,
            task_function=self.task_function,
            config=self.config,
            init=dict(self._init),
            remote=dict(self._remote),
        )
