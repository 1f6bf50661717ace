"""Requests in columns, as a workload passes them on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from c2c.errors import DataError
from c2c.ranges import FromZero, In, check_fields
from c2c.workloads.prefixes import Lists, cover

__all__ = [
    "MEASURED",
    "OF_MODEL",
    "WISHES",
    "ClosedLoop",
    "RequestBlock",
    "Workload",
    "concatenate",
]

MEASURED = ("measured_ttft_s", "measured_tpot_s")
# What a request asks for, and its value where it does not say.
OF_MODEL = -(2**62)
WISHES = {
    "max_output_tokens": 0, "priority": OF_MODEL, "deadline_s": np.inf, "cancel_s": np.inf
}  # fmt: skip
_OPTIONAL = ("ids", "session", "turn", "think_s", "calls_tool", *MEASURED, *WISHES)  # of a request
_MOST_PARENTS = 1024  # requests that one waits for


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBlock:
    """Consecutive requests of a workload, in columns of equal length.

    Block j of request r has the key `block_keys[block_first[r] + j]`, of the model and all tokens
    up to the block's end; the last block may be partly filled. Two requests share a prefix as far
    as their keys are equal from the first on.

    Attributes:
      arrival_s: f64[n], seconds since the workload's start, ascending.
      model: i32[n], index into the workload's `models`.
      prompt_tokens: i32[n], at least 1.
      output_tokens: i32[n], at least 1.
      ids: i64[n], ascending; None: numbered on.
      block_tokens: per block; 0: no prefixes, `block_first` and `block_keys` are None.
      block_first: i64[n + 1], index of each request's first key, from 0.
      block_keys: u64[block_first[n]], within `prompt_tokens`.
      keys_answers: keys of whole blocks, continued over the answer.
      session: i64[n], conversation, or -1; None: none.
      turn: i32[n], position in the session, from 1, or 0.
      think_s: f64[n], from its parents' last end (`arrival_s` orders); NaN, None: it arrives at
        `arrival_s`.
      parent_first: i64[n + 1], first parent in `parent_turns`; None: the session's previous turn is
        the parent.
      parent_turns: i32[parent_first[n]], earlier turns waited for.
      calls_tool: bool[n], the answer ends in a tool's call.
      measured_ttft_s: f64[n], on the traced system; NaN, None: unknown.
      measured_tpot_s: f64[n], likewise.
      max_output_tokens: i64[n], reserved limit, at least `output_tokens`; None: the lengths.
      priority: i64[n], higher is more urgent; OF_MODEL, None: the models'.
      deadline_s: f64[n], from arrival until the server gives up; inf: never. None: the models'.
      cancel_s: f64[n], from arrival until the client leaves; inf: never.
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
    parent_first: NDArray[np.int64] | None = None
    parent_turns: NDArray[np.int32] | None = None
    calls_tool: NDArray[np.bool_] | None = None
    measured_ttft_s: NDArray[np.float64] | None = None
    measured_tpot_s: NDArray[np.float64] | None = None
    max_output_tokens: NDArray[np.int64] | None = None
    priority: NDArray[np.int64] | None = None
    deadline_s: NDArray[np.float64] | None = None
    cancel_s: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        for name in ("model", "prompt_tokens", "output_tokens"):
            column = getattr(self, name)
            assert column.dtype == np.int32, f"{name} is {column.dtype}, not int32"
            assert column.shape == self.arrival_s.shape, f"{name} differs in length"
        assert self.arrival_s.dtype == np.float64
        if (hashes := self.hashes()) is not None:
            assert len(hashes.first) == len(self) + 1, "block_first differs in length"
        if (parents := self.parents()) is not None:
            assert len(parents.first) == len(self) + 1, "parent_first differs in length"

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    def take(self, rows: slice | NDArray[Any]) -> RequestBlock:
        """Return the selected rows."""
        there = {name: column for name in _OPTIONAL if (column := getattr(self, name)) is not None}
        block = RequestBlock(
            arrival_s=self.arrival_s[rows],
            model=self.model[rows],
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            keys_answers=self.keys_answers,
            **{name: column[rows] for name, column in there.items()},
        )
        if (parents := self.parents()) is not None:
            block = block.waiting(parents.take(rows))
        hashes = self.hashes()
        return block if hashes is None else block.hashed(hashes.take(rows), self.block_tokens)

    def hashes(self) -> Lists | None:
        """Return the keys of requests' blocks; None if unknown."""
        if self.block_first is None or self.block_keys is None:
            return None
        return Lists(first=self.block_first, values=self.block_keys)

    def parents(self) -> Lists | None:
        """Return the turns waited for; None: the session's previous one."""
        if self.parent_first is None or self.parent_turns is None:
            return None
        return Lists(first=self.parent_first, values=self.parent_turns)

    def waiting(self, parents: Lists) -> RequestBlock:
        """Return the requests with other parents."""
        return replace(self, parent_first=parents.first, parent_turns=parents.values)

    def hashed(self, keys: Lists | None, block_tokens: int) -> RequestBlock:
        """Return the requests with these keys, cut to their tokens; None: none."""
        if keys is None:
            return replace(self, block_tokens=0, block_first=None, block_keys=None)
        keys = keys.upto(self.most_blocks(block_tokens))
        return replace(
            self, block_tokens=block_tokens, block_first=keys.first, block_keys=keys.values
        )

    def most_blocks(self, block_tokens: int) -> NDArray[np.int64]:
        """Return the most keys that each request may have."""
        if self.keys_answers:
            return (self.prompt_tokens.astype(np.int64) + self.output_tokens) // block_tokens
        return cover(self.prompt_tokens, block_tokens)

    def prompt_blocks(self) -> NDArray[np.int64]:
        """Count prompt blocks of each request."""
        assert self.block_first is not None
        counts = np.diff(self.block_first)
        if self.keys_answers:
            return np.minimum(counts, self.prompt_tokens // self.block_tokens)
        return counts

    def apart(self, roots: np.uint64 | NDArray[np.uint64]) -> RequestBlock:
        """Return the requests with keys shared only within a root.

        Args:
          roots: one for all or each; see `c2c.workloads.prefixes.root_of`.
        """
        if self.block_first is None or self.block_keys is None:
            return self
        of_each = np.broadcast_to(roots, len(self))
        keys = self.block_keys + np.repeat(of_each, np.diff(self.block_first))  # wraps around
        return replace(self, block_keys=keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Clients that send a request, wait for its end, and send the next.

    Clients of sessions begin the next one after the last end.

    Attributes:
      concurrency: number of clients.
      think_s: from the end of a request, or session, to the next.
      ramp_s: time of even starts; 0: together, so equal requests stay in lockstep.
    """

    concurrency: Annotated[int, In("[1, 2**31)")]
    think_s: FromZero = 0.0
    ramp_s: FromZero = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "workload")


@dataclass(frozen=True, slots=True)
class Workload:
    """A stream of requests, readable again.

    Attributes:
      models: deployments; `RequestBlock.model` indexes them.
      source: new iterator over the same blocks.
      description: origin of the requests, JSON-serialisable.
      loop: clients, ignoring `RequestBlock.arrival_s`; None: requests arrive at their times.
      made_of: each deployment's model in catalog + `added`.
      added: shipped models named by ids.
    """

    models: tuple[str, ...]
    source: Callable[[], Iterator[RequestBlock]] = field(repr=False)
    description: Mapping[str, Any] = field(default_factory=dict)
    loop: ClosedLoop | None = None
    made_of: tuple[int, ...] = ()
    added: tuple[str, ...] = ()

    def blocks(self) -> Iterator[RequestBlock]:
        """Yield the checked blocks from the first on.

        Raises:
          DataError: descending or infinite arrivals, a model outside the catalog, a length below 1,
            a limit below its answer, a deadline not above 0, or too many keys.
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
            limit = block.max_output_tokens
            if limit is not None and bool(np.any(limit < block.output_tokens)):
                raise DataError("workload", "a request's max_output_tokens is below its answer")
            for name in ("deadline_s", "cancel_s"):
                times = getattr(block, name)
                if times is not None and not bool(np.all(times > 0.0)):
                    raise DataError("workload", f"a request's {name} is not above 0")
            if (parents := block.parents()) is not None:
                _check_parents(block, parents)
            last_s = float(arrival_s[-1])
            yield block


def _check_parents(block: RequestBlock, parents: Lists) -> None:
    counts = np.diff(parents.first)
    if counts.max(initial=0) > _MOST_PARENTS:
        raise DataError(
            "workload", f"a request waits for {counts.max():,} others: at most {_MOST_PARENTS:,}"
        )
    if block.turn is None or bool(np.any(parents.values >= np.repeat(block.turn, counts))):
        raise DataError("workload", "a request waits for a turn that is not before it")


def concatenate(blocks: Iterable[RequestBlock]) -> RequestBlock:
    """Join blocks; optional columns must be in all."""
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
        parent_first=_joined_first([part.parent_first for part in parts]),
        parent_turns=_joined([part.parent_turns for part in parts]),
        **{name: _joined([getattr(part, name) for part in parts]) for name in _OPTIONAL},
    )


def _joined(columns: Iterable[NDArray[Any] | None]) -> NDArray[Any] | None:
    there = [column for column in columns if column is not None]
    return np.concatenate(there) if there else None


def _joined_first(columns: Iterable[NDArray[np.int64] | None]) -> NDArray[np.int64] | None:
    counts = _joined([None if column is None else np.diff(column) for column in columns])
    return None if counts is None else np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
