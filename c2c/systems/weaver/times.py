"""Costs of works of a model's decode steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from c2c.cost import (
    DEFAULT_ALPHAS,
    Constants,
    StepTable,
    at_best_alpha,
    read_constants,
    step_table,
)
from c2c.hardware import Slice, conf_dir
from c2c.models import ModelSpec
from c2c.serving import Cost, Curve

__all__ = ["Times", "curve", "fitted", "fitted_claims", "times_of"]

JOINS_S: Final = 1e-6  # seconds that a prompt computed elsewhere adds; no work takes 0 s
_PAIRS: Final = 1024  # tokens that a token of a prompt attends to at most, for timing
_GRID: Final = 64  # prompt tokens between two timed sizes
_FITTED: Final = ("collective_s", "ahead_s")

Values = npt.NDArray[np.float64]


def fitted() -> dict[str, float]:
    """Return constants fitted to printed numbers: `collective_s` and `ahead_s`, seconds."""
    constants = read_constants(conf_dir() / "calibration" / "weaver" / "fitted.yaml", _FITTED)
    return {name: value for name, (value, _) in constants.items()}


def fitted_claims() -> frozenset[str]:
    """Return the printed numbers that `fitted` is fitted to."""
    constants = read_constants(conf_dir() / "calibration" / "weaver" / "fitted.yaml", _FITTED)
    return frozenset(claim for _, source in constants.values() for claim in source.claims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times of a model on a GPU or rank.

    Attributes:
      host_s: a step, beside the calibration's.
      collectives_s: [rows], of a step; (): none.
    """

    spec: ModelSpec
    table: StepTable
    host_s: float = 0.0
    collectives_s: tuple[float, ...] = ()

    def rest_s(self, rows: npt.ArrayLike) -> Values:
        """Return the seconds of a decode step without attention."""
        counts = np.arange(len(self.table.body_s))
        head = self.table.head_s[counts, 0]
        whole = self.table.body_s[:, 0] + head + self.table.step_overhead_s + self.host_s
        if self.collectives_s:
            whole = whole + np.array(self.collectives_s)
        result: Values = np.interp(np.asarray(rows, np.float64), counts, whole)
        return result

    def attention_s(self, rows: npt.ArrayLike, context: float) -> Values:
        """Return a layer's decode attention seconds; 0 without rows."""
        table, rows = self.table, np.asarray(rows, np.float64)
        calls = np.interp(rows, np.arange(len(table.decode_attention_s)), table.decode_attention_s)
        times_s: Values = (calls + table.kv_read_s_per_token * context * rows) / self.spec.layers
        return np.where(rows > 0, times_s, 0.0)

    @property
    def attention(self) -> Cost:
        """Cost of decode attention in all layers."""
        rows = np.arange(1, self.table.max_rows + 1)
        calls = curve(rows, self.table.decode_attention_s[rows])
        return Cost(decode=calls, cached=self.table.kv_read_s_per_token)

    def rest(self) -> Cost:
        """Return the cost of a decode step without attention."""
        rows = np.arange(1, self.table.max_rows + 1)
        return Cost(prefill=flat(JOINS_S), decode=curve(rows, self.rest_s(rows)))

    def step(self, more_s: float = 0.0) -> Cost:
        """Return a decode step's cost plus `more_s`."""
        rows = np.arange(1, self.table.max_rows + 1)
        whole = self.rest_s(rows) + self.table.decode_attention_s[rows] + more_s
        return Cost(
            prefill=flat(JOINS_S), decode=curve(rows, whole),
            cached=self.table.kv_read_s_per_token,
        )  # fmt: skip

    def with_prompts(self, cost: Cost) -> Cost:
        """Return a decode step's cost with prompts, weights read once."""
        table, rows = self.table, np.array(cost.decode.sizes)
        tokens = np.arange(1, table.max_tokens + 1)
        once = curve(tokens, self.rest_s(tokens) - table.head_s[tokens, 0] + table.head_s[1, 0])
        pairs = tokens * np.minimum(tokens, _PAIRS) / 2 * table.attn_s_per_pair
        return Cost(
            tokens=once, prefill=curve(tokens, table.prefill_attention_s[tokens] + pairs),
            decode=curve(rows, np.maximum(0.0, cost.decode.values - once.at(rows))),
            cached=cost.cached,
        )  # fmt: skip

    def link_bytes(self, *, has_prompts: bool) -> Cost:
        """Return a step's bytes over the chip's link."""
        sizes = np.arange(1, self.table.max_tokens + 1)
        body, head = self.table.body_link_bytes[sizes, 0], self.table.head_link_bytes[sizes, 0]
        if not has_prompts:
            return Cost(decode=curve(sizes, body + head))
        more = np.maximum(0.0, head - head[0])
        return Cost(tokens=curve(sizes, body + head[0]), decode=curve(sizes, more))

    def prompts(self) -> Cost:
        """Return prompts' cost by tokens, each with some 1,000 keys."""
        table = self.table
        tokens = np.unique([1, *range(_GRID, table.max_tokens + 1, _GRID), table.max_tokens])
        pairs = tokens * np.minimum(tokens, _PAIRS) / 2
        seconds = table.body_s[tokens, 0] + table.prefill_attention_s[tokens]
        seconds = seconds + pairs * table.attn_s_per_pair + table.head_s[1, 0]
        if self.collectives_s:
            seconds = seconds + np.array(self.collectives_s)[tokens]
        return Cost(prefill=curve(tokens, seconds + table.step_overhead_s + self.host_s))


@lru_cache(maxsize=64)
def times_of(
    spec: ModelSpec, part: Slice, constants: Constants, *, rows: int, tokens: int = 0,
    host_s: float = 0.0, collective_s: float = 0.0, gbps: float = 0.0,
    link_gbps: tuple[float, float] | None = None,
) -> Times:  # fmt: skip
    """Return a model's times.

    Args:
      rows: most rows of a step.
      tokens: most prompt tokens of a step.
      collective_s: fixed, of each all-reduce, two a layer; 0: none.
      gbps: of the all-reduces' link.
      link_gbps: of the chip's link alone and beside others, at the best alpha; None: weights are in
        HBM.
    """
    most = max(rows, tokens)
    if link_gbps is None:
        table = step_table(
            spec, part, constants, 1.0, max_tokens=most, max_rows=most, alphas=[0.0], weights="hbm"
        )
    else:
        every = step_table(
            spec, part, constants, link_gbps[0], max_tokens=most, max_rows=most,
            alphas=DEFAULT_ALPHAS, weights="host",
        )  # fmt: skip
        table = at_best_alpha(every, link_gbps[1])
    sums: tuple[float, ...] = ()
    if collective_s > 0.0:
        sent_s = spec.hidden * spec.dtype_bytes / (gbps * 1e9)
        counts = np.arange(max(rows, tokens) + 1)
        sums = tuple(2 * spec.layers * (collective_s + counts * sent_s))
    return Times(spec=spec, table=table, host_s=host_s, collectives_s=sums)


def curve(sizes: npt.ArrayLike, values: npt.ArrayLike) -> Curve:
    """Return the curve of values by size."""
    whole = tuple(np.asarray(sizes, np.int64).tolist())
    return Curve(whole, np.asarray(values, np.float64))


def flat(seconds: float) -> Curve:
    """Return the curve of equal seconds at every size."""
    return Curve((1, 1 << 30), np.full(2, seconds))
