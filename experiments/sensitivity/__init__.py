"""Sensitivity of results to one constant or setting at a time."""

from experiments.sensitivity.knobs import Knob, changed, chip_knobs, constant_knobs, setting_knob
from experiments.sensitivity.search import LIMIT, Change, Search, Wanted

__all__ = [
    "LIMIT",
    "Change",
    "Knob",
    "Search",
    "Wanted",
    "changed",
    "chip_knobs",
    "constant_knobs",
    "setting_knob",
]
