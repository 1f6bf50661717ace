"""The front's link: what a slow client gets, who is slow, and questions that nobody answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.engine import messages as say
from c2c.engine.front.failures import ApiError, after_end
from c2c.engine.front.link import MOST_WAITING, Link
from tests.engine.fake_workers import FakeLink

FIELDS: dict[str, Any] = {
    "model": "m", "ids": (1,), "new": 9999, "temperature": 0.0, "seed": 0, "stop": (),
}  # fmt: skip


class Wire:
    """A link whose scheduler says what a test has it say."""

    def __init__(self) -> None:
        self.link, self.scheduler = Link("nowhere"), FakeLink()
        self.link._link, self.link.is_up = self.scheduler, True  # type: ignore[assignment]
        self.said = 0

    def tokens(self, count: int) -> None:
        """Say that so many tokens have come of request 1, in one piece."""
        for token in range(self.said, self.said + count):
            self.link._heard(say.Tokens(request=1, tokens=(token,)))
        self.said += count

    @property
    def aborts(self) -> int:
        return sum(isinstance(frame, say.Abort) for frame in self.scheduler.frames)


def taken(queue: asyncio.Queue[say.Answered], most: int) -> list[say.Answered]:
    return [queue.get_nowait() for _ in range(min(most, queue.qsize()))]


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(
        st.tuples(st.sampled_from([0, 1, 3, 40, 300]), st.sampled_from([0, 1, 2, 50])), max_size=40
    ),
    silent=st.integers(0, 400),
    why=st.sampled_from(["stop", "length", "worker_lost"]),
)
def test_no_answer_that_lacks_tokens_says_that_it_is_whole(
    turns: list[tuple[int, int]], silent: int, why: str
) -> None:
    """Tokens that come in a turn of the loop, and answers that the client takes after it."""

    async def scenario() -> None:
        wire = Wire()
        _, queue = wire.link.ask(**FIELDS)
        found: list[say.Answered] = []
        for come, take in [*turns, *[(1, 0)] * silent, (0, 5), (1, 0)]:
            wire.tokens(come)
            await asyncio.sleep(0)
            found += taken(queue, take)
        wire.link._heard(say.Ended(request=1, why=why))
        *answers, end = [*found, *taken(queue, queue.qsize())]
        assert isinstance(end, say.Ended)
        got = [t for answer in answers if isinstance(answer, say.Tokens) for t in answer.tokens]
        assert got == list(range(len(got)))
        assert end.why == (why if len(got) == wire.said or why == "worker_lost" else "cancelled")
        assert wire.aborts == (len(got) < wire.said)

    asyncio.run(scenario())


@pytest.mark.parametrize("takes", [1, 9999])
def test_a_client_that_keeps_up_is_not_cancelled_for_a_burst(takes: int) -> None:
    async def scenario() -> None:
        wire = Wire()
        _, queue = wire.link.ask(**FIELDS)
        got = 0
        for come in (MOST_WAITING + 100, *[1] * 100, MOST_WAITING):
            wire.tokens(come)
            await asyncio.sleep(0)
            got += len(taken(queue, takes))
        assert wire.aborts == 0
        assert got + queue.qsize() == wire.said

    asyncio.run(scenario())


def test_a_client_that_does_not_read_is_cancelled() -> None:
    async def scenario() -> None:
        wire = Wire()
        _, queue = wire.link.ask(**FIELDS)
        for _ in range(MOST_WAITING + 20):
            wire.tokens(1)
            await asyncio.sleep(0)
        assert wire.aborts == 1
        wire.link._heard(say.Ended(request=1, why="length"))  # the abort came too late
        end = taken(queue, queue.qsize())[-1]
        assert isinstance(end, say.Ended)
        assert after_end(end.why).status_code == 499

    asyncio.run(scenario())


def test_a_question_is_answered_when_the_engine_goes() -> None:
    class Gone(FakeLink):
        async def each(self, take: Any) -> None:
            """End at once."""

    async def scenario() -> None:
        wire = Wire()
        asked = [
            asyncio.create_task(wire.link.live()),
            asyncio.create_task(wire.link.command(say.Manage, model="m", what="pin")),
        ]
        await asyncio.sleep(0)
        asked[0].cancel()  # whoever asked has gone
        await asyncio.sleep(0)
        await wire.link._read(Gone())  # type: ignore[arg-type]
        with pytest.raises(ApiError):
            await asked[1]
        assert not wire.link._waiting

    asyncio.run(scenario())
