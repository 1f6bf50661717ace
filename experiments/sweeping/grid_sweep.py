"""Grid sweep: all combinations of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.utils import JobReturn
from omegaconf import DictConfig

from c2c.errors import SettingError
from experiments.sweeping.arguments import grid

__all__ = ["run_grid", "sweep_within"]


def run_grid(
    arguments: Sequence[str],
    config: DictConfig,
    loader: ConfigLoader,
    launch: Callable[..., Sequence[JobReturn]],
    *,
    max_batch_size: int | None = None,
    params: Mapping[str, Any] | None = None,
) -> list[Sequence[JobReturn]]:
    """Run all points of a grid; return results by batch."""
    points = grid([*(f"{k}={v}" for k, v in (params or {}).items()), *arguments], loader)
    _check(points, config, loader)
    size = max_batch_size or len(points)
    batches = []
    for first in range(0, len(points), size):
        results = launch(points[first : first + size], initial_job_idx=first)
        for result in results:
            _ = result.return_value  # raises what ended the point's process
        batches.append(results)
    return batches


def _check(points: Sequence[tuple[str, ...]], config: DictConfig, loader: ConfigLoader) -> None:
    def is_group(override: str) -> bool:
        return bool(loader.get_group_options(override.partition("=")[0].lstrip("+~")))

    values = zip(*points, strict=True)
    groups = [i for i, column in enumerate(values) if is_group(column[0])]
    checked: dict[tuple[str, ...], tuple[str, ...]] = {}
    for point in points:
        checked.setdefault(tuple(point[i] for i in groups), point)
    for chosen, point in checked.items():
        composed = loader.load_sweep_config(config, list(point))
        params = composed.hydra.sweeper.params
        if params and params != config.hydra.sweeper.params:
            raise sweep_within(params, " ".join(chosen))


def sweep_within(own: Mapping[str, Any], chosen: str) -> SettingError:
    """Return the error for a choice with its own sweep."""
    return SettingError(
        "hydra.sweeper.params", dict(own), "no sweep of its own beside others",
        f"Run {chosen} in a command of its own.",
    )  # fmt: skip
