"""Requests in columns: what a workload hands to the simulator, block after block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from c2c.errors import DataError, SettingError

__all__ = ["ClosedLoop", "RequestBlock", "Workload", "concatenate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBlock:
    """Requests that follow one another, in columns of equal length.

    Attributes:
      arrival_s: f64[n], seconds since the start of the workload, ascending.
      model: i32[n], index into the workload's `models`.
      prompt_tokens: i32[n], at least 1.
      output_tokens: i32[n], at least 1.
      ids: i64[n], ascending; None counts on from the block before.
    """

    arrival_s: NDArray[np.float64]
    model: NDArray[np.int32]
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    ids: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for name in ("model", "prompt_tokens", "output_tokens"):
            column = getattr(self, name)
            assert column.dtype == np.int32, f"{name} is {column.dtype}, not int32"
            assert column.shape == self.arrival_s.shape, f"{name} differs in length"
        assert self.arrival_s.dtype == np.float64

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    def take(self, rows: slice | NDArray[Any]) -> RequestBlock:
        """Return the rows a slice, a mask or an index array selects."""
        return RequestBlock(
            arrival_s=self.arrival_s[rows],
            model=self.model[rows],
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            ids=None if self.ids is None else self.ids[rows],
        )


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
            last_s = float(arrival_s[-1])
            yield block


def concatenate(blocks: Iterable[RequestBlock]) -> RequestBlock:
    """Join blocks into one; the result holds every request in memory.

    It has ids if the blocks have.
    """
    parts = list(blocks)
    ids = [part.ids for part in parts if part.ids is not None]
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
        ids=np.concatenate(ids) if ids else None,
    )
