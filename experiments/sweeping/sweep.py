"""Sweep on the chosen launcher and sweeper."""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from c2c.config import Settings, checked, config_dir, fits, quoted
from c2c.errors import SettingError
from c2c.runs import RunDir, check_room, is_in_use
from experiments.ray_cluster import INSTALL_RAY
from experiments.sweeping.arguments import fixed, grid
from experiments.sweeping.grid_sweep import sweep_within
from experiments.sweeping.points import PointRecord, fail, finish, records

__all__ = ["EmptySearch", "Found", "Shared", "sweep"]

GRIDS = (
    "hydra_plugins.c2c_sweeping.C2cGridSweeper",
    "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",  # hydra/sweeper=basic
)
SUBMITIT_LOCAL = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher"
BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
RAY = "hydra_plugins.c2c_sweeping.C2cRayLauncher"
POLL_S = 0.2


class EmptySearch(Exception):
    """No point of a search has a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Settings of all points; `hydra`: Hydra's own, `loader` lists its groups."""

    cfg: DictConfig
    hydra: DictConfig
    loader: ConfigLoader

    @property
    def is_grid(self) -> bool:
        """True if all points are known in advance."""
        return str(self.hydra.sweeper._target_) in GRIDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Result of a sweep, read from its folders.

    Attributes:
      points: in order; one not begun is `failed`.
      error: of launcher, sweeper or search; "": none.
    """

    points: tuple[PointRecord, ...]
    error: str
    at: Path

    @property
    def status(self) -> int:
        """Exit status: 0 if every point has its result."""
        return int(bool(self.error) or any(p.state == "failed" for p in self.points))


def sweep(
    task: Callable[[DictConfig], Any],
    arguments: Sequence[str],
    *,
    config_name: str,
    check: Callable[[Shared], None],
    waiting: Callable[[Path], None] = lambda folder: None,  # noqa: ARG005
    here: Callable[[Callable[[], Settings], PointRecord], None] | None = None,
) -> Found | None:
    """Run all points; return results, None if Hydra answered alone."""
    settings = _shared(arguments, config_name)
    if settings is None:
        return None
    check(settings)
    launcher = str(settings.hydra.launcher._target_)
    if launcher == RAY and not find_spec("ray"):
        raise SettingError(
            "hydra/launcher", "ray", "a launcher that is installed", f"Install it: {INSTALL_RAY}"
        )
    out = Path(settings.cfg.out).expanduser()
    check_room(out)
    expected = _expected(settings, arguments)
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    sweep_folder = out.resolve() / ".sweeps" / name
    more = [f"hydra.sweep.dir={quoted(str(sweep_folder))}"]
    local_jobs = launcher == SUBMITIT_LOCAL and settings.is_grid
    if local_jobs and settings.hydra.sweeper.max_batch_size is None:
        # Submitit starts all points of a batch at once.
        more.append(f"hydra.sweeper.max_batch_size={os.cpu_count() or 1}")
    if here and settings.is_grid and launcher == BASIC and not settings.hydra.callbacks:
        error = ""
        for number, plain in enumerate(settings_of(settings, expected)):
            here(plain, PointRecord(number=number, overrides=expected[number], at=sweep_folder))
    else:
        error = _launched(task, [*arguments, *more], config_name)
    record_of = records(sweep_folder)
    for number, overrides in enumerate(expected):
        if number not in record_of:
            record_of[number] = fail(
                PointRecord(number=number, overrides=overrides, at=sweep_folder),
                "the point never began",
            )
    points = [_settled(record_of[number], waiting) for number in sorted(record_of)]
    return Found(points=tuple(points), error=error, at=sweep_folder)


def _shared(arguments: Sequence[str], config_name: str) -> Shared | None:
    """Compose the shared settings; None if Hydra answered alone (--help, --cfg)."""
    captures: list[Shared] = []

    def keep(cfg: DictConfig) -> None:
        whole: Any = HydraConfig.instance().cfg
        loader = GlobalHydra.instance().config_loader()
        captures.append(Shared(cfg=cfg, hydra=whole.copy().hydra, loader=loader))

    _with_arguments(fixed(arguments), lambda: _decorated(keep, config_name))
    return captures[0] if captures else None


def _expected(settings: Shared, arguments: Sequence[str]) -> list[tuple[str, ...]]:
    if not settings.is_grid:
        return []
    params = settings.hydra.sweeper.params or {}
    assignments = [
        a for a in arguments if not a.startswith("-") and not a.lstrip("+~").startswith("hydra")
    ]
    return grid([*(f"{k}={v}" for k, v in params.items()), *assignments], settings.loader)


def settings_of(shared: Shared, points: Sequence[tuple[str, ...]]) -> list[Callable[[], Settings]]:
    """Return functions that return each point's settings."""
    master = OmegaConf.create({"hydra": shared.hydra})
    parser = OverridesParser.create(config_loader=shared.loader)

    @cache
    def whole(overrides: tuple[str, ...]) -> Callable[[], Settings]:
        cfg = shared.loader.load_sweep_config(master, list(overrides))
        params = cfg.hydra.sweeper.params
        if params and params != shared.hydra.sweeper.params:
            raise sweep_within(params, " ".join(overrides))
        with open_dict(cfg):
            del cfg["hydra"]
        return cache(lambda: checked(cfg))

    @cache
    def value_of(override: str) -> Any:
        key, _, text = override.partition("=")
        is_plain = re.fullmatch(r"[\w.]+", key) and "$" not in text and "?" not in text
        if not is_plain or shared.loader.get_group_options(key):
            return None
        value = parser.parse_override(override).value()
        return value if type(value) in (bool, int, float, str) else None

    def point(overrides: tuple[str, ...]) -> Callable[[], Settings]:
        plain = {o.partition("=")[0]: v for o in overrides if (v := value_of(o)) is not None}
        base = whole(tuple(o for o in overrides if value_of(o) is None))
        try:
            first = base()
        except SettingError:
            return base
        if not all(fits(_at(first, name), value) for name, value in plain.items()):
            return whole(overrides)
        return lambda: first.with_(plain)

    return [point(overrides) for overrides in points]


def _at(settings: Any, name: str) -> Any:
    for key in name.split("."):
        settings = settings.get(key) if isinstance(settings, dict) else None
    return settings


def _launched(task: Callable[[DictConfig], Any], arguments: Sequence[str], config_name: str) -> str:
    try:
        _with_arguments(arguments, lambda: _decorated(task, config_name))
    except (HydraException, OmegaConfBaseException, SettingError):
        raise
    except EmptySearch as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 (a launcher's or sweeper's; folders have the rest)
        last = (str(error).strip() or "no message").splitlines()[-1]
        return f"the sweep was cut short: {type(error).__name__}: {last}"
    return ""


def _settled(point: PointRecord, waiting: Callable[[Path], None]) -> PointRecord:
    if point.state == "begun":
        return fail(point, "its process was killed; run the same command to repeat it")
    if point.state == "elsewhere":
        assert point.folder is not None
        if is_in_use(point.folder):
            waiting(point.folder)
        while is_in_use(point.folder):
            time.sleep(POLL_S)
        if not RunDir.holds(point.folder, point.key):
            return fail(
                point, "the process that worked in its folder ended; run the same command again",
                point.folder,
            )  # fmt: skip
        return finish(point, "elsewhere", point.folder, point.key)
    return point


def _decorated(task: Callable[[DictConfig], Any], config_name: str) -> None:
    hydra.main(config_path=str(config_dir()), config_name=config_name, version_base="1.3")(task)()


def _with_arguments(arguments: Sequence[str], run: Callable[[], None]) -> None:
    argv = sys.argv[:]
    sys.argv[1:] = arguments
    try:
        run()
    finally:
        sys.argv[:] = argv
