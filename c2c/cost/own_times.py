"""A user's step times in place of modelled ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from c2c.cost.step import StepTable
from c2c.errors import SettingError, check_keys
from c2c.ranges import Count, FromZero, check_fields, check_value

__all__ = ["StepTimes", "step_times", "timed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of a model's steps, alone on the link.

    Curves are linear, constant below, with the last slope above. A mixed step takes its prompts'
    time, and what its decodes add to a decode step.

    Attributes:
      step_s: of every step, beside the curves.
      prefill_s: of so many prompt tokens alone.
      decode_s: of so many decodes alone, without cache reads.
      cached_token_s: of each cached token read.
    """

    step_s: FromZero = 0.0
    prefill_s: Mapping[int, FromZero] = field(default_factory=dict)
    decode_s: Mapping[int, FromZero] = field(default_factory=dict)
    cached_token_s: FromZero = 0.0

    def __post_init__(self) -> None:
        check_fields(self)


def step_times(settings: object, where: str) -> StepTimes:
    """Return step times from a mapping of settings.

    Raises:
      SettingError: an unknown field, a bad size or time.
    """
    if not isinstance(settings, Mapping):
        raise SettingError(where, settings, "a mapping, such as {step_s: 0.02}")
    check_keys(settings, [f.name for f in fields(StepTimes)], where)
    times: dict[str, Any] = dict(settings)
    for name in ("prefill_s", "decode_s"):
        curve = times.get(name, {})
        if not isinstance(curve, Mapping):
            raise SettingError(f"{where}.{name}", curve, "seconds by tokens, such as {512: 0.03}")
        sizes = [int(k) if isinstance(k, str) and k.isdecimal() else k for k in curve]
        for size in sizes:
            check_value(size, Count, f"{where}.{name}", "tokens")
        times[name] = dict(sorted(zip(sizes, curve.values(), strict=True)))
    try:
        result = StepTimes(**times)
    except SettingError as error:
        raise SettingError(f"{where}.{error.field}", error.value, error.allowed) from None
    if not (result.step_s or result.prefill_s or result.decode_s):
        raise SettingError(where, dict(settings), "step_s, prefill_s or decode_s")
    return result


def timed(table: StepTable, times: StepTimes) -> StepTable:
    """Return a model's step costs with other seconds."""
    prompts = _curve(times.prefill_s, len(table.prefill_attention_s))
    decodes = _curve(times.decode_s, len(table.body_s))
    return replace(
        table,
        body_s=np.broadcast_to(decodes[:, None], table.body_s.shape).copy(),
        head_s=np.zeros_like(table.head_s),
        step_overhead_s=times.step_s,
        kv_read_s_per_token=times.cached_token_s,
        attn_s_per_pair=0.0,
        prefill_attention_s=prompts - decodes[: len(prompts)],
        decode_attention_s=np.zeros_like(table.decode_attention_s),
    )


def _curve(seconds: Mapping[int, float], count: int) -> np.ndarray:
    sizes, values = np.array(list(seconds)), np.array(list(seconds.values()), np.float64)
    if not len(sizes):
        return np.zeros(count)
    tokens = np.arange(count)
    curve = np.interp(tokens, sizes, values)
    if len(sizes) > 1:
        slope = (values[-1] - values[-2]) / (sizes[-1] - sizes[-2])
        curve += np.maximum(0, tokens - sizes[-1]) * slope
    curve[0] = 0.0
    return np.maximum(curve, 0.0)
