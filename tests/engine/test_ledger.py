"""Laws of requests that lose their worker more than once: each by itself, without an engine."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.engine import messages as say
from c2c.engine import worker
from c2c.engine.ledger import Ledger


def opened(ledger: Ledger) -> None:
    draws: dict[str, Any] = {"temperature": 0.0, "seed": 0, "ids": (1, 2, 3), "new": 99, "stop": ()}
    ledger.open(say.Ask(request=1, model="any", **draws), 0, 0.0)


@given(st.lists(st.booleans(), max_size=30))
def test_losses_count_from_the_last_token(are_tokens: list[bool]) -> None:
    """True: a token is delivered; False: a worker is lost."""
    ledger = Ledger(lambda *_: None, lambda *_: None)
    opened(ledger)
    entry = ledger.get(1)
    assert entry is not None
    losses = 0
    for token, is_token in enumerate(are_tokens):
        if is_token:
            ledger.deliver(1, token)
            losses = 0
        else:
            entry.losses += 1  # as the backend does
            losses += 1
        assert entry.losses == losses


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=20))
def test_scores_of_a_prompt_are_told_once_and_in_order(parts: list[tuple[int, int]]) -> None:
    """A prompt that begins anew has scores that were told before."""
    told: list[float] = []
    ledger = Ledger(
        lambda *_: None, lambda *_: None,
        lambda _, scores: told.extend(score.logprob for score in scores),
    )  # fmt: skip
    opened(ledger)
    reached = 1  # the first token of a prompt has no score
    for first, count in parts:
        numbers = range(first, first + count)
        ledger.score(
            1, first, tuple(say.Scored(request=1, logprob=float(k), top=()) for k in numbers)
        )
        if first <= reached:
            reached = max(reached, first + count)
        assert told == [*map(float, range(1, reached))]


@pytest.mark.parametrize(
    ("plans", "plan", "ends"),
    [((), 5, False), ((4,), 5, False), ((5,), 5, True), ((6,), 5, True), ((6, 4), 6, True),
     ((4, 3), 5, False), ((5, 4), 6, False)],
)  # fmt: skip
def test_an_interrupt_ends_its_plan_and_no_later_one(
    plans: tuple[int, ...], plan: int, ends: bool
) -> None:
    class Frames:
        def __init__(self) -> None:
            self.left = deque([say.Interrupt(plan=number)] for number in plans)

        def receive(self, *, waits: bool) -> list[Any]:
            return self.left.popleft() if self.left else []

    frames: Any = Frames()
    inbox = worker._Inbox(frames)
    for _ in plans:
        inbox.ends(-1)
    assert inbox.ends(plan) == ends
