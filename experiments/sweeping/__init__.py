"""Sweeps on any of Hydra's launchers."""

from experiments.sweeping.arguments import (
    check_arguments,
    fixed,
    grid,
    is_sweep,
    options_first,
)
from experiments.sweeping.plain import Point, joined, plain_points
from experiments.sweeping.plugins import register_plugins
from experiments.sweeping.points import PointRecord, begin, fail, finish
from experiments.sweeping.sweep import Found, Shared, sweep

__all__ = [
    "Found",
    "Point",
    "PointRecord",
    "Shared",
    "begin",
    "check_arguments",
    "fail",
    "finish",
    "fixed",
    "grid",
    "is_sweep",
    "joined",
    "options_first",
    "plain_points",
    "register_plugins",
    "sweep",
]
