"""Random inputs of attention, in contiguous arrays and in pages, with the exact result beside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from tests.pallas_kernels.attention.exact import Exact, exact_attention, visible_keys


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call; the rows' offsets and lengths, None for the defaults."""

    queries: int
    keys: int
    heads: int = 2
    kv_heads: int = 1
    dim: int = 64
    dtype: str = "bfloat16"
    causal: bool = True
    window: int | None = None
    offsets: tuple[int, ...] = (0,)
    lengths: tuple[int, ...] | None = None
    seed: int = 0
    unwritten: float = float("nan")  # what lies beyond the lengths
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        rng, rows = np.random.default_rng(self.seed), len(self.offsets)

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(dtype_of(self.dtype))

        q = normal(rows, self.queries, self.heads, self.dim)
        k, v = (normal(rows, self.keys, self.kv_heads, self.dim) for _ in range(2))
        for row, length in enumerate(self.row_lengths):
            k[row, length:] = self.unwritten
            v[row, length:] = self.unwritten
        object.__setattr__(self, "arrays", (q, k, v))

    @property
    def row_lengths(self) -> tuple[int, ...]:
        return self.lengths or (self.keys,) * len(self.offsets)

    def seen(self) -> np.ndarray:
        return np.stack(
            [
                visible_keys(
                    self.queries, self.keys, causal=self.causal, window=self.window,
                    q_offset=offset, kv_length=length,
                )
                for offset, length in zip(self.offsets, self.row_lengths, strict=True)
            ]
        )  # fmt: skip

    def options(self) -> dict[str, Any]:
        return {
            "causal": self.causal,
            "window": self.window,
            "q_offset": np.array(self.offsets, np.int32),
            "kv_lengths": np.array(self.row_lengths, np.int32),
        }

    def exact(self, out_dtype: str | None = None, merges: int = 0) -> Exact:
        return exact_attention(
            *self.arrays, self.seen(), scale=self.dim**-0.5,
            out_dtype=dtype_of(out_dtype or self.dtype), merges=merges,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Paged:
    """The keys of a `Case` of `decoding`, in a shuffled pool of pages."""

    case: Case
    k_pages: np.ndarray
    v_pages: np.ndarray
    tables: np.ndarray

    @property
    def arguments(self) -> tuple[np.ndarray, ...]:
        lengths = np.array(self.case.row_lengths, np.int32)
        return (self.case.arrays[0][:, 0], self.k_pages, self.v_pages, self.tables, lengths)


def decoding(lengths: tuple[int, ...], keys: int, **options: Any) -> Case:
    """Return a case of one query a row that stands at the row's last key."""
    offsets = tuple(length - 1 for length in lengths)
    return Case(queries=1, keys=keys, offsets=offsets, lengths=lengths, **options)


def paged(case: Case, page: int, *, seed: int = 0, spare: int = 3, stray: int = -7) -> Paged:
    """Lay the keys out in pages.

    Args:
      case: whose keys; their number is a multiple of `page`.
      page: tokens.
      seed: of the permutation of pages.
      spare: pages that belong to nobody, of what was never written.
      stray: what the block tables hold beyond the last page of a row.
    """
    rows, each = len(case.offsets), case.keys // page
    order = np.random.default_rng(seed).permutation(rows * each + spare)
    tables = order[: rows * each].reshape(rows, each).astype(np.int32)
    pools = []
    for array in case.arrays[1:]:
        pool = np.full(
            (rows * each + spare, page, *array.shape[2:]), case.unwritten, dtype=array.dtype
        )
        pool[tables] = array.reshape(rows, each, page, *array.shape[2:])
        pools.append(pool)
    for row, length in enumerate(case.row_lengths):
        tables[row, -(-length // page) :] = stray
    return Paged(case=case, k_pages=pools[0], v_pages=pools[1], tables=tables)
