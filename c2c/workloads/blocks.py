"""Requests in columns: what a workload hands to the simulator, block after block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from c2c.errors import DataError, SettingError
from c2c.workloads.prefixes import Hashes, cover

__all__ = ["MEASURED", "ClosedLoop", "RequestBlock", "Workload", "concatenate"]

MEASURED = ("measured_ttft_s", "measured_tpot_s")
_OPTIONAL = ("ids", "session", "turn", "think_s", *MEASURED)  # columns of a value a request


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBlock:
    """Requests that follow one another, in columns of equal length.

    What a prompt begins with is told by its blocks of `block_tokens` tokens, the last one perhaps
    cut short by the prompt's end: block j of request r has the key
    `block_keys[block_first[r] + j]`. A key stands for the model and for all tokens from the
    prompt's first to the block's last, so that two requests share tokens as far as their keys are
    equal from the first on, and equal keys need no look at the model. A request's blocks may end
    before its prompt does; what follows is known to nobody else.

    Attributes:
      arrival_s: f64[n], seconds since the start of the workload, ascending.
      model: i32[n], index into the workload's `models`.
      prompt_tokens: i32[n], at least 1.
      output_tokens: i32[n], at least 1.
      ids: i64[n], ascending; None counts on from the block before.
      block_tokens: 0: nothing is known of prefixes, and `block_first` and `block_keys` are None.
      block_first: i64[n + 1], from 0 on.
      block_keys: u64[block_first[n]], at most those that hold `prompt_tokens`.
      keys_answers: keys are of whole blocks only, and go on over the answer as the next turn of the
        session has it in its prompt.
      session: i64[n], a number that requests of one conversation share, or -1; None: of none.
      turn: i32[n], the request's place in its session, from 1, or 0; None where `session` is.
      think_s: f64[n], from the end of the turn before to this request, whose `arrival_s` then gives
        nothing but its place in the order; NaN for one that comes at its time. None: all do.
      measured_ttft_s: f64[n], of the request where it was served, NaN if unknown; None: of none.
      measured_tpot_s: f64[n], likewise.
    """

    arrival_s: NDArray[np.float64]
    model: NDArray[np.int32]
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    ids: NDArray[np.int64] | None = None
    block_tokens: int = 0
    block_first: NDArray[np.int64] | None = None
    block_keys: NDArray[np.uint64] | None = None
    keys_answers: bool = False
    session: NDArray[np.int64] | None = None
    turn: NDArray[np.int32] | None = None
    think_s: NDArray[np.float64] | None = None
    measured_ttft_s: NDArray[np.float64] | None = None
    measured_tpot_s: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        for name in ("model", "prompt_tokens", "output_tokens"):
            column = getattr(self, name)
            assert column.dtype == np.int32, f"{name} is {column.dtype}, not int32"
            assert column.shape == self.arrival_s.shape, f"{name} differs in length"
        assert self.arrival_s.dtype == np.float64
        if (hashes := self.hashes()) is not None:
            assert len(hashes.first) == len(self) + 1, "block_first differs in length"

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    def take(self, rows: slice | NDArray[Any]) -> RequestBlock:
        """Return the rows a slice, a mask or an index array selects."""
        there = {name: column for name in _OPTIONAL if (column := getattr(self, name)) is not None}
        block = RequestBlock(
            arrival_s=self.arrival_s[rows],
            model=self.model[rows],
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            keys_answers=self.keys_answers,
            **{name: column[rows] for name, column in there.items()},
        )
        hashes = self.hashes()
        return block if hashes is None else block.hashed(hashes.take(rows), self.block_tokens)

    def hashes(self) -> Hashes | None:
        """Return the blocks' keys request by request; None where nothing is known of prefixes."""
        if self.block_first is None or self.block_keys is None:
            return None
        return Hashes(first=self.block_first, values=self.block_keys)

    def hashed(self, keys: Hashes | None, block_tokens: int) -> RequestBlock:
        """Return the requests with these keys, as far as their tokens go, or with none."""
        if keys is None:
            return replace(self, block_tokens=0, block_first=None, block_keys=None)
        keys = keys.upto(self.most_blocks(block_tokens))
        return replace(
            self, block_tokens=block_tokens, block_first=keys.first, block_keys=keys.values
        )

    def most_blocks(self, block_tokens: int) -> NDArray[np.int64]:
        """Return the most blocks of this size that each request may have keys of."""
        if self.keys_answers:
            return (self.prompt_tokens.astype(np.int64) + self.output_tokens) // block_tokens
        return cover(self.prompt_tokens, block_tokens)

    def prompt_blocks(self) -> NDArray[np.int64]:
        """Return the number of prompt blocks of each request."""
        assert self.block_first is not None
        counts = np.diff(self.block_first)
        if self.keys_answers:
            return np.minimum(counts, self.prompt_tokens // self.block_tokens)
        return counts

    def apart(self, roots: np.uint64 | NDArray[np.uint64]) -> RequestBlock:
        """Return the requests with keys that only requests of the same root share.

        Args:
          roots: of all requests, or of each; see `c2c.workloads.prefixes.root_of`.
        """
        if self.block_first is None or self.block_keys is None:
            return self
        of_each = np.broadcast_to(roots, len(self))
        keys = self.block_keys + np.repeat(of_each, np.diff(self.block_first))  # wraps around
        return replace(self, block_keys=keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Clients that send one request after another; a block's requests in order, whoever is free.

    Attributes:
      concurrency: clients, the most requests in flight.
      think_s: from the end of a client's request to its next one.
      ramp_s: over which the clients begin, evenly; 0: all at once, so that equal requests stay
        together.
    """

    concurrency: int
    think_s: float = 0.0
    ramp_s: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency < 2**31:
            raise SettingError(
                "workload.concurrency", self.concurrency, "a whole number from 1 to 2**31 - 1"
            )
        for name in ("think_s", "ramp_s"):
            if not 0 <= (value := getattr(self, name)) < float("inf"):
                raise SettingError(f"workload.{name}", value, "seconds, 0 or more")


@dataclass(frozen=True, slots=True)
class Workload:
    """A stream of requests that can be started again and again.

    Attributes:
      models: catalog names; `RequestBlock.model` indexes them.
      source: makes a fresh iterator over the blocks, always the same ones.
      description: where the requests come from: source, factors, model assignment, counts of bad
        rows. Plain data (JSON-serialisable).
      loop: clients that send the requests when they are free, where `RequestBlock.arrival_s` means
        nothing; None: requests come at their times.
    """

    models: tuple[str, ...]
    source: Callable[[], Iterator[RequestBlock]] = field(repr=False)
    description: Mapping[str, Any] = field(default_factory=dict)
    loop: ClosedLoop | None = None

    def blocks(self) -> Iterator[RequestBlock]:
        """Yield the requests from the first on, checking order and range as they pass.

        Raises:
          DataError: a block is out of order, or names a model or length that cannot be.
        """
        last_s = 0.0
        for block in self.source():
            if not len(block):
                continue
            arrival_s = block.arrival_s
            if arrival_s[0] < last_s or bool(np.any(arrival_s[1:] < arrival_s[:-1])):
                raise DataError("workload", f"arrivals go back in time near {arrival_s[0]:.6f} s")
            if not np.isfinite(arrival_s[-1]):
                raise DataError("workload", "an arrival is not finite")
            if int(block.model.min()) < 0 or int(block.model.max()) >= len(self.models):
                raise DataError("workload", "a request names a model outside the catalog")
            if int(block.prompt_tokens.min()) < 1 or int(block.output_tokens.min()) < 1:
                raise DataError("workload", "a request has no prompt or no output token")
            if block.block_first is not None and bool(
                np.any(np.diff(block.block_first) > block.most_blocks(block.block_tokens))
            ):
                raise DataError("workload", "a request has more blocks than its tokens fill")
            last_s = float(arrival_s[-1])
            yield block


def concatenate(blocks: Iterable[RequestBlock]) -> RequestBlock:
    """Join blocks into one; the result holds every request in memory.

    It has ids if the blocks have, and likewise what else is optional.
    """
    parts = list(blocks)
    if not parts:
        return RequestBlock(
            arrival_s=np.empty(0, np.float64),
            model=np.empty(0, np.int32),
            prompt_tokens=np.empty(0, np.int32),
            output_tokens=np.empty(0, np.int32),
        )
    return RequestBlock(
        arrival_s=np.concatenate([part.arrival_s for part in parts]),
        model=np.concatenate([part.model for part in parts]),
        prompt_tokens=np.concatenate([part.prompt_tokens for part in parts]),
        output_tokens=np.concatenate([part.output_tokens for part in parts]),
        block_tokens=parts[0].block_tokens,
        keys_answers=parts[0].keys_answers,
        block_first=_joined_first([part.block_first for part in parts]),
        block_keys=_joined([part.block_keys for part in parts]),
        **{name: _joined([getattr(part, name) for part in parts]) for name in _OPTIONAL},
    )


def _joined(columns: Iterable[NDArray[Any] | None]) -> NDArray[Any] | None:
    there = [column for column in columns if column is not None]
    return np.concatenate(there) if there else None


def _joined_first(columns: Iterable[NDArray[np.int64] | None]) -> NDArray[np.int64] | None:
    counts = _joined([None if column is None else np.diff(column) for column in columns])
    return None if counts is None else np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
