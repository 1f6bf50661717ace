"""Ledger of open requests and their delivered tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from c2c.engine.messages import Ask, Scored

__all__ = ["Entry", "Ledger"]

_WAITS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


@dataclass(slots=True)
class Entry:
    """An open request.

    Attributes:
      begun_s: when a worker first got it; None: waits.
      delivered: tokens sent, never revoked.
      prompted: prompt scores sent.
      losses: workers lost with this request alone since its last token.
    """

    ask: Ask
    model: int
    arrived_s: float
    begun_s: float | None = None
    delivered: list[int] = field(default_factory=list)
    prompted: int = 1  # the first token has no score
    blocks: tuple[int, ...] = ()
    found: int = 0
    losses: int = 0

    @property
    def left(self) -> int:
        """Number of tokens that may still be generated."""
        return self.ask.new - len(self.delivered)


@dataclass(slots=True)
class Waits:
    """Seconds until the first steps of a model's requests."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_WAITS_S) + 1))
    total_s: float = 0.0

    def buckets(self) -> list[tuple[float | None, int]]:
        """Return cumulative counts by upper bound of wait [s]; None: no bound."""
        return list(zip((*_WAITS_S, None), accumulate(self.counts), strict=True))


class Ledger:
    """Open requests. Lost work is recomputed, delivered tokens stay."""

    def __init__(
        self,
        on_token: Callable[[int, int, Scored | None], None],
        on_end: Callable[[int, Entry, str], None],
        on_prompt: Callable[[int, tuple[Scored, ...]], None] = lambda *_: None,
        on_reuse: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        """Create an empty ledger with its listeners.

        Args:
          on_token: gets request, new token and its score or None.
          on_end: gets request, entry and "stop", "length" or a failure's outcome.
          on_prompt: gets request and further prompt scores.
          on_reuse: gets request and cached prompt tokens.
        """
        self._on_token, self._on_end, self._on_prompt, self._on_reuse = (
            on_token,
            on_end,
            on_prompt,
            on_reuse,
        )
        self._open: dict[int, Entry] = {}
        self.outcomes: dict[str, int] = {}
        self.waits: dict[str, Waits] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._open))

    def of_model(self, model: str) -> list[int]:
        """Return a model's open requests."""
        return [request for request, entry in self._open.items() if entry.ask.model == model]

    def open(self, ask: Ask, model: int, arrived_s: float, blocks: tuple[int, ...] = ()) -> None:
        """Add an entry; request numbers are never reused."""
        if ask.request in self._open:
            raise ValueError(f"request {ask.request} is already open")
        self._open[ask.request] = Entry(ask=ask, model=model, arrived_s=arrived_s, blocks=blocks)

    def get(self, request: int) -> Entry | None:
        """Return a request's entry, or None."""
        return self._open.get(request)

    def begin(self, request: int, at_s: float) -> None:
        """Record that a worker gets a request, which ends its wait."""
        entry = self._open.get(request)
        if entry is None:
            return
        if not entry.delivered:
            entry.found = 0
        if entry.begun_s is not None:
            return
        entry.begun_s = at_s
        waits = self.waits.setdefault(entry.ask.model, Waits())
        waits.counts[bisect_left(_WAITS_S, at_s - entry.arrived_s)] += 1
        waits.total_s += at_s - entry.arrived_s

    def deliver(self, request: int, token: int, score: Scored | None = None) -> bool:
        """Deliver a token; return whether the request is open."""
        entry = self._open.get(request)
        if entry is None:
            return False
        entry.delivered.append(token)
        entry.losses = 0
        self._on_token(request, token, score)
        return True

    def find(self, request: int, tokens: int) -> None:
        """Add cached prompt tokens, and report their total."""
        entry = self._open.get(request)
        if entry is not None and not entry.delivered:
            entry.found += tokens
            self._on_reuse(request, entry.found)

    def score(self, request: int, first: int, scores: tuple[Scored, ...]) -> None:
        """Deliver scores of prompt tokens from index `first` on."""
        entry = self._open.get(request)
        if entry is None or not first <= entry.prompted < first + len(scores):
            return
        self._on_prompt(request, scores[entry.prompted - first :])
        entry.prompted = first + len(scores)

    def end(self, request: int, why: str) -> bool:
        """End a request; False: it had ended."""
        entry = self._open.pop(request, None)
        if entry is None:
            return False
        self.outcomes[why] = self.outcomes.get(why, 0) + 1
        self._on_end(request, entry, why)
        return True
