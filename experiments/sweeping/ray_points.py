"""Points of a sweep as Ray tasks over a shared file system."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from experiments.ray_cluster import started_ray

__all__ = ["launch"]


def launch(
    job_overrides: Sequence[Sequence[str]],
    first: int,
    *,
    hydra_context: HydraContext,
    task_function: TaskFunction,
    config: DictConfig,
    init: Mapping[str, Any],
    remote: Mapping[str, Any],
) -> list[JobReturn]:
    """Run the points and wait for all, even after a loss."""
    ray = started_ray(**init)
    setup_globals()
    task = ray.remote(_run).options(**remote)
    state, here = Singleton.get_state(), os.getcwd()  # noqa: PTH109 (a string, for another machine)
    waiting = []
    for number, overrides in enumerate(job_overrides, first):
        point = hydra_context.config_loader.load_sweep_config(config, list(overrides))
        with open_dict(point):
            point.hydra.job.id = f"{point.hydra.job.name}_{number}"
            point.hydra.job.num = number
        waiting.append(task.remote(hydra_context, point, task_function, state, here))
    return [_result(ray, one) for one in waiting]


def _result(ray: Any, waiting: Any) -> JobReturn:
    try:
        done: JobReturn = ray.get(waiting)
    except ray.exceptions.RayError as error:
        done = JobReturn()
        done.status, done.return_value = JobStatus.FAILED, RuntimeError(_last_line(error))
    return done


def _last_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


def _run(
    hydra_context: HydraContext,
    config: DictConfig,
    task_function: TaskFunction,
    singletons: dict[Any, Any],
    folder: str,
) -> JobReturn:
    """Run a point in `folder`, shared by machines under one name."""
    os.chdir(folder)
    setup_globals()
    Singleton.set_state(singletons)
    HydraConfig.instance().set_config(config)
    return run_job(
        hydra_context=hydra_context,
        task_function=task_function,
        config=config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
