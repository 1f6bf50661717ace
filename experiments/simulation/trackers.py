"""Hydra callbacks that log runs to MLflow or Weights & Biases."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, open_dict

from c2c.config import checked
from c2c.errors import SettingError
from c2c.runs import settings_by_path, summary_fields
from experiments.simulation.execute import complete_folder

__all__ = ["Mlflow", "Wandb"]


class _Tracker(Callback, ABC):
    package = ""

    def __init__(self, project: str) -> None:
        if find_spec(self.package) is None:
            raise SettingError(
                "hydra/callbacks", self.package, "a package that is installed",
                f"Install it: pip install {self.package}",
            )  # fmt: skip
        self._project, self._begun_s = project, 0.0

    def on_job_start(self, config: DictConfig, **_: Any) -> None:  # noqa: ARG002
        self._begun_s = time.time()

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:  # noqa: ARG002
        """Log a configuration's run, unless failed or complete before."""
        plain = config.copy()
        with open_dict(plain):
            plain.pop("hydra", None)
        try:
            settings = checked(plain)
        except SettingError:  # the run has said so
            return
        folder = complete_folder(settings)
        if folder is None or (folder / "DONE").stat().st_mtime < self._begun_s:
            return
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        numbers = {name: n for name, n in summary_fields(summary).items() if n is not None}
        self._log(folder.name, settings_by_path(settings), numbers, sorted(folder.rglob("*.png")))

    @abstractmethod
    def _log(
        self, run: str, settings: Mapping[str, Any], numbers: Mapping[str, float],
        pictures: Sequence[Path],
    ) -> None:  # fmt: skip
        pass


class Mlflow(_Tracker):
    """Logs to an experiment of MLflow."""

    package = "mlflow"

    def _log(
        self, run: str, settings: Mapping[str, Any], numbers: Mapping[str, float],
        pictures: Sequence[Path],
    ) -> None:  # fmt: skip
        mlflow = import_module("mlflow")
        mlflow.set_experiment(self._project)
        with mlflow.start_run(run_name=run):
            mlflow.log_params(settings)
            mlflow.log_metrics(numbers)
            for picture in pictures:
                mlflow.log_artifact(str(picture))


class Wandb(_Tracker):
    """Logs to a project of Weights & Biases."""

    package = "wandb"

    def _log(
        self, run: str, settings: Mapping[str, Any], numbers: Mapping[str, float],
        pictures: Sequence[Path],
    ) -> None:  # fmt: skip
        wandb = import_module("wandb")
        with wandb.init(project=self._project, name=run, config=dict(settings)) as logged:
            logged.log({**numbers, **{p.stem: wandb.Image(str(p)) for p in pictures}})
