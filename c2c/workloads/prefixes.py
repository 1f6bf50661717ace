"""Hashes of prompts' blocks, and keys of shared prefixes."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["SIZES", "Fit", "Lists", "block_keys", "cover", "root_of"]

SIZES = tuple(2**k for k in range(3, 13))  # candidate tokens per block of a trace
_TELLING = 10  # requests; fewer may fit a size by chance
_ODD = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """Lists in one array; request r has `values[first[r]:first[r + 1]]`.

    Attributes:
      first: i64[n + 1].
      values: [first[n]], such as u64 hashes of blocks.
    """

    first: NDArray[np.int64]
    values: NDArray[Any]

    def take(self, rows: slice | NDArray[np.generic]) -> Lists:
        """Return the lists of the selected requests."""
        if isinstance(rows, slice) and rows.step in (None, 1):  # neighbours: nothing is copied
            start, stop, _ = rows.indices(len(self.first) - 1)
            first = self.first[start : max(start, stop) + 1]
            return Lists(first=first - first[0], values=self.values[first[0] : first[-1]])
        return self._of(self.first[:-1][rows], np.diff(self.first)[rows])

    def upto(self, most: NDArray[np.int64]) -> Lists:
        """Return the first `most[r]` values of each request r."""
        counts = np.diff(self.first)
        if not (counts > most).any():
            return self
        return self._of(self.first[:-1], np.minimum(counts, most))

    def _of(self, begin: NDArray[np.int64], counts: NDArray[np.int64]) -> Lists:
        first = np.concatenate([[0], np.cumsum(counts)])
        index = np.arange(first[-1]) + np.repeat(begin - first[:-1], counts)
        return Lists(first=first, values=self.values[index])


def cover(tokens: NDArray[np.int32], block_tokens: int) -> NDArray[np.int64]:
    """Count blocks that hold these tokens."""
    return -(-tokens.astype(np.int64) // block_tokens)


def block_keys(hashes: Lists, block_tokens: int) -> NDArray[np.uint64]:
    """Return each block's key, of all hashes up to it and the block size.

    Requests share a prefix as far as their keys are equal from the first on. Hashes may be of a
    block's own tokens or of the prefix.
    """
    first, values = hashes.first, hashes.values
    counts = np.diff(first)
    place = np.arange(len(values)) - np.repeat(first[:-1], counts)
    with np.errstate(over="ignore"):
        mixed = _mix(values ^ _mix(place.astype(np.uint64)))
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
        before = np.repeat(sums[first[:-1]], counts)
        return np.asarray(sums[1:] - before + root_of(block_tokens))


def root_of(*numbers: int) -> np.uint64:
    """Return a root that separates keys by numbers, such as a model's."""
    root = np.zeros(1, np.uint64)
    for number in numbers:
        root = _mix(root ^ np.array([number], np.uint64))
    return np.uint64(root[0])


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        x = x + np.uint64(_ODD)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(slots=True)
class Fit:
    """Agreement of a trace's hashes with prompt lengths.

    Attributes:
      blocks: hashed blocks within the prompts.
      fewer: requests with a whole block without hash.
      more: requests with more hashes than blocks.
      misfits: requests with another number, by block size and by hash of a partly filled last
        block.
    """

    block_tokens: int
    requests: int = 0
    blocks: int = 0
    fewer: int = 0
    more: int = 0
    misfits: dict[tuple[int, bool], int] = field(
        default_factory=lambda: dict.fromkeys(product(SIZES, (True, False)), 0)
    )

    def add(self, counts: NDArray[np.int64], prompt_tokens: NDArray[np.int32]) -> None:
        """Count requests by numbers of hashes and prompt lengths."""
        having = counts > 0
        counts, prompt = counts[having], prompt_tokens[having]
        size = self.block_tokens
        self.requests += counts.size
        self.blocks += int(np.minimum(counts, cover(prompt, size)).sum())
        self.fewer += int(np.count_nonzero(counts < prompt // size))
        self.more += int(np.count_nonzero(counts > cover(prompt, size)))
        for one in SIZES:
            self.misfits[one, True] += int(np.count_nonzero(counts != cover(prompt, one)))
            self.misfits[one, False] += int(np.count_nonzero(counts != prompt // one))

    def as_dict(self) -> dict[str, int]:
        """Return the counts as plain data."""
        names = ("block_tokens", "requests", "blocks", "fewer", "more")
        return {name: getattr(self, name) for name in names}

    def other_size(self) -> int:
        """Return a block size that fits all requests if this one fits few; 0: none."""
        fitting = sorted((not partly, size) for (size, partly), n in self.misfits.items() if not n)
        unlike = self.fewer + self.more
        return fitting[0][1] if fitting and unlike >= _TELLING and 2 * unlike > self.requests else 0
