"""Sources of lengths for arrivals without any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from c2c.errors import DataError, SettingError
from c2c.ranges import Count, check_value
from c2c.workloads.containers import container_of
from c2c.workloads.formats import open_lengths
from c2c.workloads.logs import log_format_of
from c2c.workloads.parsing import token_counts
from c2c.workloads.records import json_records
from c2c.workloads.streams import stream_of

__all__ = ["LengthFilter", "LengthPool", "fixed_lengths", "read_lengths", "synthetic_lengths"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthFilter:
    """Filter of a source's pairs; by default the usual benchmark filter.

    Attributes:
      min_tokens: least prompt and least output length.
      max_prompt_tokens: longest prompt.
      max_total_tokens: most in all.
    """

    min_tokens: Count = 4
    max_prompt_tokens: int = 1024
    max_total_tokens: int = 2048

    def __post_init__(self) -> None:
        check_value(self.min_tokens, Count, "workload.length_min_tokens")
        for name in ("max_prompt_tokens", "max_total_tokens"):
            if (value := getattr(self, name)) < self.min_tokens:
                raise SettingError(
                    f"workload.length_{name}", value, f"at least {self.min_tokens}, the minimum"
                )

    def passes(self, prompt: NDArray[np.int64], output: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the pairs within the limits."""
        return (
            (prompt >= self.min_tokens)
            & (output >= self.min_tokens)
            & (prompt <= self.max_prompt_tokens)
            & (prompt + output <= self.max_total_tokens)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPool:
    """Pool of (prompt, output) pairs, drawn as pairs with replacement.

    Attributes:
      prompt_tokens: i32[n].
      output_tokens: i32[n].
      read: number of pairs before the filter.
    """

    name: str
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    read: int
    dropped: int

    def draw(
        self, rng: np.random.Generator, count: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Draw pairs; a, then b, are the same as a + b at once."""
        picks = (rng.random(count) * self.prompt_tokens.size).astype(np.int64)
        return self.prompt_tokens[picks], self.output_tokens[picks]

    def describe(self) -> dict[str, Any]:
        """Return name, counts and means as plain data."""
        return {
            "name": self.name,
            "pairs_read": self.read,
            "pairs_dropped_by_filter": self.dropped,
            "mean_prompt_tokens": round(float(self.prompt_tokens.mean()), 1),
            "mean_output_tokens": round(float(self.output_tokens.mean()), 1),
        }


def _pool(
    name: str, prompt: NDArray[np.int64], output: NDArray[np.int64], keep: LengthFilter
) -> LengthPool:
    passed = keep.passes(prompt, output)
    if not passed.any():
        raise DataError(name, f"none of {prompt.size} length pairs passes the filter {keep}")
    return LengthPool(
        name=name,
        prompt_tokens=prompt[passed].astype(np.int32),
        output_tokens=output[passed].astype(np.int32),
        read=int(prompt.size),
        dropped=int(np.count_nonzero(~passed)),
    )


# Quantiles of the ShareGPT pairs (cl100k_base tokens, first human and first assistant message)
# that pass the usual filter, 9,901 pairs; the same data as `sharegpt` in `read_lengths`.
_LEVELS = np.array([0, 1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 95, 97, 99, 99.7, 100]) / 100
_PROMPT = np.array(
    [4, 4, 7, 8, 12, 15, 21, 29, 43, 73, 138, 211, 342, 577, 736, 932, 1002, 1024], np.float64
)
_OUTPUT = np.array(
    [4, 9, 26, 48, 102, 151, 203, 249, 295, 347, 421, 477, 556, 690, 765, 769, 774, 1395],
    np.float64,
)
_RANK_CORRELATION = 0.128  # Spearman, of the same pairs
_SYNTHETIC_PAIRS = 1 << 17


@cache
def synthetic_lengths(keep: LengthFilter) -> LengthPool:
    """Return pairs with the statistics of ShareGPT's pairs; a constant, needs no file.

    Lengths interpolate the quantile table above in log space; a Gaussian copula has ShareGPT's rank
    correlation.
    """
    rng = stream_of(0, "synthetic length pool")
    # Gaussian copula: Pearson's r of the normals that gives Spearman's rho.
    r = 2 * np.sin(np.pi * _RANK_CORRELATION / 6)
    normal = rng.standard_normal((_SYNTHETIC_PAIRS, 2))
    normal[:, 1] = r * normal[:, 0] + np.sqrt(1 - r * r) * normal[:, 1]
    level = (np.arange(_SYNTHETIC_PAIRS) + 0.5) / _SYNTHETIC_PAIRS
    prompt, output = np.empty((2, _SYNTHETIC_PAIRS), np.int64)
    for tokens, column, table in ((prompt, 0, _PROMPT), (output, 1, _OUTPUT)):
        tokens[np.argsort(normal[:, column])] = np.rint(
            np.exp(np.interp(level, _LEVELS, np.log(table)))
        )
    return _pool("synthetic (ShareGPT quantiles)", prompt, output, keep)


def fixed_lengths(prompt_tokens: int, output_tokens: int) -> LengthPool:
    """Return a pool of one pair."""
    return LengthPool(
        name=f"fixed ({prompt_tokens}, {output_tokens})",
        prompt_tokens=np.array([prompt_tokens], np.int32),
        output_tokens=np.array([output_tokens], np.int32),
        read=1,
        dropped=0,
    )


def read_lengths(
    path: str | Path, keep: LengthFilter, chars_per_token: float = 0.0, name: str = ""
) -> LengthPool:
    """Read (prompt, output) pairs from a trace, a table (Parquet, CSV), a log, or ShareGPT's JSON.

    JSON is a list or lines of records, with length fields or `conversations` of `{"from": ...,
    "value": ...}`: the first two messages count if human's and assistant's.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise SettingError(
            "workload.lengths", str(path), "synthetic, fixed, sharegpt, azure2023 or a file"
        )
    pairs = (
        np.array(list(_exchanges(path, chars_per_token)), np.float64).reshape(-1, 2)
        if _has_conversations(path)
        else _table_pairs(path, chars_per_token)
    )
    good = np.isfinite(pairs).all(axis=1) & (pairs >= 0).all(axis=1) & (pairs < 2**31).all(axis=1)
    usable = np.where(good[:, None], pairs, 0).astype(np.int64)  # 0 never passes the filter
    return _pool(name or path.name, usable[:, 0], usable[:, 1], keep)


def _table_pairs(path: Path, chars_per_token: float) -> NDArray[np.float64]:
    table = open_lengths(path, chars_per_token)
    names = [table.columns[field] for field in ("prompt_tokens", "output_tokens")]
    broken: list[float] = []
    parts = [
        np.stack([token_counts(batch.column(name)) for name in names], axis=1)
        for batch in table.batches(lambda: broken.append(0.0))
    ]
    # A malformed line becomes (0, 0), which no filter passes, so it counts as dropped.
    return np.concatenate([np.zeros((len(broken), 2)), *parts])


def _has_conversations(path: Path) -> bool:
    if container_of(path) != "json" or log_format_of(path) is not None:
        return False
    return "conversations" in (next(json_records(path), None) or {})


def _exchanges(path: Path, chars_per_token: float) -> Iterator[tuple[float, float]]:
    if chars_per_token <= 0:
        raise SettingError(
            "workload.chars_per_token",
            chars_per_token,
            "a number above 0",
            f"{path.name} holds text and there is no tokeniser here; about 4 characters make a "
            "token in English.",
        )
    for record in json_records(path):
        pair = _first_exchange((record or {}).get("conversations"))
        if pair is not None:
            yield tuple(float(np.ceil(len(t) / chars_per_token)) for t in pair)  # type: ignore[misc]


def _first_exchange(conversation: Any) -> tuple[str, str] | None:
    if not isinstance(conversation, list) or len(conversation) < 2:
        return None
    first, second = conversation[:2]
    try:
        if first["from"] in {"human", "user"} and second["from"] in {"gpt", "assistant", "chatgpt"}:
            return str(first["value"]), str(second["value"])
    except (KeyError, TypeError):  # a message of another shape makes no pair
        return None
    return None
