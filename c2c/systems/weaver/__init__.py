"""WEAVER: attention of some hot sequences on a cold model's GPU."""

from c2c.systems.weaver.layout import SYSTEM, cut_of, woven_layout
from c2c.systems.weaver.layout_settings import Weaving
from c2c.systems.weaver.profile import Pair, Woven, payload_bytes, profile_of, woven
from c2c.systems.weaver.splitting import (
    Cut,
    Limits,
    Threshold,
    ThresholdOf,
    best_cut,
    expected_stall,
    guarded_cut,
    printed_cut,
    printed_stall,
    stated_objective,
)
from c2c.systems.weaver.times import fitted, fitted_claims

__all__ = [
    "SYSTEM",
    "Cut",
    "Limits",
    "Pair",
    "Threshold",
    "ThresholdOf",
    "Weaving",
    "Woven",
    "best_cut",
    "cut_of",
    "expected_stall",
    "fitted",
    "fitted_claims",
    "guarded_cut",
    "payload_bytes",
    "printed_cut",
    "printed_stall",
    "profile_of",
    "stated_objective",
    "woven",
    "woven_layout",
]
