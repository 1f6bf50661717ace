"""WEAVER: a cold model's GPU attends to a share of a hot model's sequences."""

from c2c.systems.weaver.splitting import (
    Cut,
    Limits,
    Threshold,
    best_cut,
    expected_stall,
    guarded_cut,
    printed_cut,
    printed_stall,
    stated_objective,
)

__all__ = [
    "Cut",
    "Limits",
    "Threshold",
    "best_cut",
    "expected_stall",
    "guarded_cut",
    "printed_cut",
    "printed_stall",
    "stated_objective",
]
