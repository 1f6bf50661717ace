"""Work that can wait and the look for reports, over a clock and a core that the tests move."""

from __future__ import annotations

import asyncio
from typing import Any

from c2c.engine import messages as say
from c2c.engine.answers import Answers
from c2c.engine.between import Between

LOOK_S = 0.0001


class Core:
    """Notes the looks; each takes a moment, or as long as others have the core."""

    def __init__(self, away_s: float = LOOK_S) -> None:
        self.now_s, self.away_s = 0.0, away_s
        self.looks: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def give_way(self) -> None:
        self.looks.append(self.now_s)
        self.now_s += self.away_s


async def _turns() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def _after_a_step(core: Core, seconds: float, *, looks: bool = True) -> Between:
    """A step of that length is over, and another of its kind has begun."""
    between = Between(looks=looks, clock=core.clock, give_way=core.give_way)
    between.expect(0, "decode")
    await _turns()
    assert not core.looks, "how long it takes is not known yet"
    core.now_s += seconds
    between.heard(0)
    await _turns()
    assert not core.looks, "nothing is due"
    core.now_s = 0.0
    between.expect(0, "decode")
    return between


def test_a_short_step_is_looked_for_until_its_report_is_late() -> None:
    async def scenario() -> None:
        core = Core()
        await _after_a_step(core, 0.0015)
        await _turns()
        assert core.looks[0] == 0.0
        assert 0.0024 < core.looks[-1] < 0.0026
        count = len(core.looks)
        await _turns()
        assert len(core.looks) == count, "a device that is silent costs no core"

    asyncio.run(scenario())


def test_a_long_step_is_slept_through_until_it_is_nearly_over() -> None:
    async def scenario() -> None:
        core = Core()
        between = await _after_a_step(core, 0.010)
        between.expect(1, "other")  # of which nothing is known
        await _turns()
        assert not core.looks
        core.now_s = 0.009  # as the timer goes off
        await asyncio.sleep(0.03)
        await _turns()
        assert core.looks[0] == 0.009
        assert 0.0110 < core.looks[-1] < 0.0114

    asyncio.run(scenario())


def test_what_is_heard_is_looked_for_no_more() -> None:
    async def scenario() -> None:
        core = Core()
        between = await _after_a_step(core, 0.0015)
        for _ in range(5):
            await asyncio.sleep(0)
        assert core.looks
        between.heard(0)
        count = len(core.looks)
        await _turns()
        assert len(core.looks) == count

    asyncio.run(scenario())


def test_a_core_that_others_want_is_left_to_them_for_a_while() -> None:
    async def scenario() -> None:
        core = Core(away_s=0.0005)
        between = await _after_a_step(core, 0.0015)
        await _turns()
        assert core.looks == [0.0], "half a millisecond was taken; fifty times that is rest"
        for at_s, looks in ((0.020, 1), (0.0255, 2)):
            core.now_s = at_s - 0.0015
            between.expect(0, "decode")
            core.now_s = at_s
            between.heard(0)
            between.expect(0, "decode")
            await _turns()
            assert len(core.looks) == looks

    asyncio.run(scenario())


def test_where_it_is_not_to_look_it_sleeps() -> None:
    async def scenario() -> None:
        core = Core()
        await _after_a_step(core, 0.0015, looks=False)
        await _turns()
        assert not core.looks

    asyncio.run(scenario())


def test_work_waits_for_its_turn_and_is_done_in_order_an_error_or_not() -> None:
    async def scenario() -> None:
        done: list[int] = []
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: errors.append(what))
        between = Between(looks=False)

        def work(number: int) -> None:
            done.append(number)
            if number == 3:
                raise ValueError(number)

        for number in range(40):
            between.later(work, number)
        assert not done
        await asyncio.sleep(0)
        assert 0 < len(done) < 40, "events have their turn in between"
        await _turns()
        assert done == [*range(40)]
        assert len(errors) == 1
        between.later(work, 40)
        between.catch_up()
        assert done[-1] == 40

    asyncio.run(scenario())


def test_the_front_hears_in_one_piece_and_in_order() -> None:
    sent: list[tuple[say.Answered, ...]] = []

    async def scenario() -> None:
        answers = Answers(Between(looks=False), lambda *frames: sent.append(frames))
        score = say.Scored(request=2, logprob=-1.0, top=())
        answers.token(1, 7, None)
        answers.token(2, 8, score)
        answers.end(1, "length")
        answers.end(3, "overloaded", 1.5)
        assert not sent
        await _turns()
        answers.token(2, 9, None)
        await _turns()
        assert sent == [
            (
                say.Tokens(request=1, tokens=(7,)),
                say.Tokens(request=2, tokens=(8,), scores=(score,)),
                say.Ended(request=1, why="length"),
                say.Ended(request=3, why="overloaded", retry_s=1.5),
            ),
            (say.Tokens(request=2, tokens=(9,)),),
        ]

    asyncio.run(scenario())
