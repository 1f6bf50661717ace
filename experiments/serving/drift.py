"""Deviations of a run from the fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from experiments.serving.calibration import StepFit

__all__ = ["Drift", "Shape", "drift_of", "shapes_of"]

_WINDOW_S = 10.0
_LEAST = 20  # steps that a window needs to count


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Deviation of decode steps from the fit in ten-second windows.

    Attributes:
      windows: those with enough steps.
      worst: largest relative deviation.
      usual: median relative deviation.
    """

    windows: int
    worst: float
    usual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Recorded and fitted seconds of a shape.

    Attributes:
      kind: "decode", or "prompt" for steps with chunks of prompts.
      size: rows, or padded tokens of all chunks.
      live_s: mean, of device and host.
      fitted_s: mean, by the fit.
      is_seen: whether fitted.
    """

    model: str
    kind: str
    size: int
    steps: int
    live_s: float
    fitted_s: float
    is_seen: bool

    @property
    def error(self) -> float:
        """Relative excess of the fit over the live time."""
        return self.fitted_s / self.live_s - 1.0


def drift_of(steps: pa.Table, fits: Mapping[str, StepFit]) -> Drift:
    """Return the deviation of a run's windows from the fit."""
    c = _columns(steps)
    which = _usual(c) & (c["prompt_tokens"] == 0)
    fitted = _fitted_s(c, fits)
    which &= fitted > 0  # without row classes that the fit has not seen
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


def shapes_of(steps: pa.Table, fits: Mapping[str, StepFit]) -> list[Shape]:
    """Return a run's shapes by model, kind and size."""
    c = _columns(steps)
    usual, is_prompt = _usual(c), c["prompt_tokens"] > 0
    padded = np.array([sum(chunk for chunk in calls if chunk) for calls in c["calls"]], np.int64)
    size = np.where(is_prompt, padded, c["rows"])
    spent, fitted = c["seconds"] + c["host_s"], _fitted_s(c, fits)
    result = []
    for model, fit in fits.items():
        for kind, of_kind in (("decode", ~is_prompt), ("prompt", is_prompt)):
            mine = usual & of_kind & (c["model"] == model)
            for n in np.unique(size[mine]).tolist():
                one = mine & (size == n)
                seconds_of = fit.rows_s if kind == "decode" else fit.chunk_s
                result.append(
                    Shape(
                        model=model, kind=kind, size=int(n), steps=int(one.sum()),
                        live_s=float(spent[one].mean()), fitted_s=float(fitted[one].mean()),
                        is_seen=int(n) in seconds_of,
                    )
                )  # fmt: skip
    return result


def _columns(steps: pa.Table) -> dict[str, np.ndarray]:
    return {name: steps[name].to_numpy(zero_copy_only=False) for name in steps.column_names}


def _usual(c: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.asarray((c["number"] >= 0) & (c["again"] == 0))


def _fitted_s(c: Mapping[str, np.ndarray], fits: Mapping[str, StepFit]) -> np.ndarray:
    """Return each step's fitted seconds; 0 if unseen."""
    out = np.zeros(len(c["model"]))
    for model, fit in fits.items():
        for k in np.flatnonzero((c["model"] == model) & (c["number"] >= 0)):
            chunks = [chunk for chunk in c["calls"][k] if chunk]
            sizes = [fit.chunk_s.get(chunk) for chunk in chunks]
            sizes = sizes or [fit.rows_s.get(int(c["rows"][k]))]
            if None not in sizes:
                out[k] = sum(s for s in sizes if s is not None)
                out[k] += fit.kv_s * c["kv_tokens"][k] + fit.turn_s * c["is_turn"][k]
    return out
