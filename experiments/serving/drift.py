"""Drift of a machine: its step costs from one time to another, relative to the whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from experiments.serving.calibration import StepFit

__all__ = ["Drift", "drift_of"]

_WINDOW_S = 10.0
_LEAST = 20  # steps of a window, to say anything of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """By how much decode steps took longer than the fit, by window of ten seconds.

    Attributes:
      windows: that had enough steps.
      worst: the largest distance of one from the fit, as a share.
      usual: the median distance.
    """

    windows: int
    worst: float
    usual: float


def drift_of(steps: pa.Table, fits: Mapping[str, StepFit]) -> Drift:
    """Return how far the windows of a run are from the fit."""
    c = {name: steps[name].to_numpy(zero_copy_only=False) for name in steps.column_names}
    which = (c["number"] >= 0) & (c["again"] == 0) & (c["prompt_tokens"] == 0)
    fitted = np.zeros(len(which))
    for model, fit in fits.items():
        mine = which & (c["model"] == model)
        rows = np.array([fit.rows_s.get(int(r), np.nan) for r in c["rows"][mine]], float)
        fitted[mine] = rows + fit.kv_s * c["kv_tokens"][mine] + fit.turn_s * c["is_turn"][mine]
    which &= fitted > 0  # a row class that the fit has not seen says nothing
    spent = (c["seconds"] + c["host_s"])[which]
    window = (c["heard_s"][which] // _WINDOW_S).astype(np.int64)
    off = [
        abs(float(spent[window == k].sum() / fitted[which][window == k].sum()) - 1.0)
        for k in np.unique(window)
        if (window == k).sum() >= _LEAST
    ]
    if not off:
        return Drift(windows=0, worst=0.0, usual=0.0)
    return Drift(windows=len(off), worst=max(off), usual=float(np.median(off)))
