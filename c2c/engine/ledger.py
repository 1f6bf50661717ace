"""Ledger of requests: tokens delivered of each, and the single function that ends it."""

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
    """A request that is not over.

    Attributes:
      ask: as the front said it.
      model: its place in the fleet.
      arrived_s: when.
      begun_s: when a worker was told of it first; None: it waits.
      delivered: its tokens so far, which nobody takes back.
      prompted: tokens of the prompt that were scored, where that is asked for.
      blocks: keys of those of its prompt.
      found: tokens of its prompt that a worker had already.
      losses: workers that were lost in a step of it alone since its last token.
    """

    ask: Ask
    model: int
    arrived_s: float
    begun_s: float | None = None
    delivered: list[int] = field(default_factory=list)
    prompted: int = 1  # nothing is told of the first
    blocks: tuple[int, ...] = ()
    found: int = 0
    losses: int = 0

    @property
    def left(self) -> int:
        """Tokens that it may still get."""
        return self.ask.new - len(self.delivered)


@dataclass(slots=True)
class Waits:
    """Seconds that a model's requests waited for their first step."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_WAITS_S) + 1))
    total_s: float = 0.0

    def buckets(self) -> list[tuple[float | None, int]]:
        """Return the cumulative number of requests by upper bound of their wait; None: no bound."""
        return list(zip((*_WAITS_S, None), accumulate(self.counts), strict=True))


class Ledger:
    """All requests of an engine. Delivered tokens are the truth: work is redone, never a token."""

    def __init__(
        self,
        told: Callable[[int, int, Scored | None], None],
        ended: Callable[[int, Entry, str], None],
        prompted: Callable[[int, tuple[Scored, ...]], None] = lambda *_: None,
        found: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        """Take whom to tell.

        Args:
          told: of each new token, and how likely it was.
          prompted: of scores of a prompt's further tokens.
          found: how many tokens of a prompt were not computed.
          ended: of the end of a request and why: "stop" or "length", else what kept it from that.
        """
        self._told, self._ended, self._prompted, self._found = told, ended, prompted, found
        self._open: dict[int, Entry] = {}
        self.outcomes: dict[str, int] = {}
        self.waits: dict[str, Waits] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._open))

    def of_model(self, model: str) -> list[int]:
        """Return the requests of a model, by its name."""
        return [request for request, entry in self._open.items() if entry.ask.model == model]

    def open(self, ask: Ask, model: int, arrived_s: float, blocks: tuple[int, ...] = ()) -> None:
        """Begin an entry; numbers of requests are never used again."""
        if ask.request in self._open:
            raise ValueError(f"request {ask.request} has an entry")
        self._open[ask.request] = Entry(ask=ask, model=model, arrived_s=arrived_s, blocks=blocks)

    def get(self, request: int) -> Entry | None:
        """Return a request's entry; None: it is over, or never was."""
        return self._open.get(request)

    def begin(self, request: int, at_s: float) -> None:
        """Take note that a worker is told of a request; the first time counts as its wait."""
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
        """Pass a token on; return whether it was wanted."""
        entry = self._open.get(request)
        if entry is None:
            return False
        entry.delivered.append(token)
        entry.losses = 0
        self._told(request, token, score)
        return True

    def find(self, request: int, tokens: int) -> None:
        """Pass on how much of a prompt a worker had already, in all, before its first token."""
        entry = self._open.get(request)
        if entry is not None and not entry.delivered:
            entry.found += tokens
            self._found(request, entry.found)

    def score(self, request: int, first: int, scores: tuple[Scored, ...]) -> None:
        """Pass on scores of a prompt from a place on; those that were computed again are known."""
        entry = self._open.get(request)
        if entry is None or not first <= entry.prompted < first + len(scores):
            return
        self._prompted(request, scores[entry.prompted - first :])
        entry.prompted = first + len(scores)

    def end(self, request: int, why: str) -> bool:
        """End a request; return False if it was over already."""
        entry = self._open.pop(request, None)
        if entry is None:
            return False
        self.outcomes[why] = self.outcomes.get(why, 0) + 1
        self._ended(request, entry, why)
        return True
