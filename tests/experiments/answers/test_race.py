"""A race of fleets finds the cheapest, in few runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.answers.fleets import Arm
from experiments.answers.race import DEAR, SAME, Outcome, Trial, parts_of, race

needs = st.lists(
    st.tuples(st.integers(1, 70), st.sampled_from([1.0, 1.35, 2.29, 3.2, 6.0])),
    min_size=1, max_size=20,
)  # fmt: skip


def raced(
    kinds: Sequence[tuple[int, float]], *, broken: Sequence[int] = (), requests: int = 8000
) -> tuple[float | None, list[Trial]]:
    """Race fleets that serve from so many chips on; return the best price and all trials."""
    trials: list[Trial] = []

    def serve(asked: Sequence[Trial]) -> list[Outcome]:
        trials.extend(asked)
        return [
            Outcome(meets=False, error="it does not fit") if t.arm in broken
            else Outcome(meets=t.chips >= kinds[t.arm][0])
            for t in asked
        ]  # fmt: skip

    arms = [Arm(params={"k": k}, usd_per_hour=p, power_w=None) for k, (_, p) in enumerate(kinds)]
    found = race(arms, parts_of(requests), serve, seeds=(0, 1, 2))
    last = parts_of(requests)[-1]
    costs = [s.serves * kinds[a][1] for a, s in found.items() if s.part == last and s.serves <= 64]
    return min(costs, default=None), trials


@given(needs, st.sets(st.integers(0, 19), max_size=3))
def test_the_cheapest_is_that_of_all(kinds: list[tuple[int, float]], broken: set[int]) -> None:
    """Fleets are equal on each part: what races has the price that trying all finds."""
    able = [n * p for k, (n, p) in enumerate(kinds) if n <= 64 and k not in broken]
    best, trials = raced(kinds, broken=sorted(broken))
    assert best == min(able, default=None)
    assert len(set(trials)) == len(trials)
    assert all(1 <= t.chips <= 64 for t in trials)


def test_few_requests_are_simulated() -> None:
    """Twenty kinds, up to 64 chips, three seeds: less than a tenth of all, in requests."""
    kinds = [(1 + 7 * k % 19, 1.0 + 0.3 * (k % 5)) for k in range(20)]
    _, trials = raced(kinds, requests=16_000)
    assert sum(t.part for t in trials) < 0.1 * 20 * 64 * 3 * 16_000


def test_a_part_that_asks_for_more_moves_the_answer() -> None:
    """The whole needs more chips than its beginning: the answer serves the whole."""

    def serve(asked: Sequence[Trial]) -> list[Outcome]:
        return [Outcome(meets=t.chips * 2000 >= t.part * (1 + t.arm)) for t in asked]

    arms = [Arm(params={}, usd_per_hour=p, power_w=None) for p in (2.0, 1.5)]
    found = race(arms, parts_of(8000), serve, seeds=(0,))
    assert (found[0].serves, found[1].serves) == (4, 8)
    alone = race(arms[1:], parts_of(200_000), serve, seeds=(0,))
    assert alone[0].out == "fails up to advise.most=64"


@pytest.mark.parametrize(("bad", "out"), [("", SAME), ("it does not fit", "it does not fit")])
def test_a_kind_that_more_chips_do_not_help_is_out_after_two_runs(bad: str, out: str) -> None:
    """One engine a model: all chips but one are idle, however many there are."""
    trials: list[Trial] = []

    def serve(asked: Sequence[Trial]) -> list[Outcome]:
        trials.extend(asked)
        return [Outcome(meets=False, missed=74, latencies=(0.2, 9.0 + 0.01 * t.chips), error=bad)
                for t in asked]  # fmt: skip

    arms = [Arm(params={}, usd_per_hour=1.0, power_w=None)]
    found = race(arms, parts_of(8000), serve, seeds=(0, 1, 2), may_miss=73.0)
    assert [(t.chips, t.part) for t in trials] == [(1, 500), (2, 500)]
    assert found[0].out == out
    # The whole may have the misses of its beginning, so that it is tried, too.
    trials.clear()
    race(arms, parts_of(8000), serve, seeds=(0,), may_miss=80.0)
    assert {t.part for t in trials} == ({500} if bad else {500, 8000})


def test_no_seed_runs_after_one_that_fails() -> None:
    trials: list[Trial] = []

    def serve(asked: Sequence[Trial]) -> list[Outcome]:
        trials.extend(asked)
        return [Outcome(meets=t.chips > 2 and t.seed != 1) for t in asked]

    race([Arm(params={}, usd_per_hour=1.0, power_w=None)], (300,), serve, seeds=(0, 1, 2), most=4)
    assert [(t.chips, t.seed) for t in trials] == [(1, 0), (2, 0), (4, 0), (4, 1)]


def test_a_kind_that_was_dear_on_a_part_is_tried_before_none_serves() -> None:
    """The cheap kind serves the beginning and not the whole, with any number of chips."""

    def serve(asked: Sequence[Trial]) -> list[Outcome]:
        return [Outcome(meets=t.part < 8000 if t.arm == 0 else t.chips >= 3) for t in asked]

    arms = [Arm(params={}, usd_per_hour=p, power_w=None) for p in (1.0, 5.0)]
    found = race(arms, parts_of(8000), serve, seeds=(0,), keep=1)
    assert (found[1].part, found[1].serves) == (8000, 3)
    assert found[0].out == "fails up to advise.most=64"


def test_the_best_kind_of_each_group_is_sized_at_any_price() -> None:
    def serve(asked: Sequence[Trial]) -> list[Outcome]:
        return [Outcome(meets=t.chips >= (1, 4, 6)[t.arm]) for t in asked]

    arms = [Arm(params={}, usd_per_hour=p, power_w=None) for p in (1.0, 3.0, 3.0)]
    found = race(arms, parts_of(8000), serve, seeds=(0,), keep=1)
    assert found[1].out == DEAR
    found = race(arms, parts_of(8000), serve, seeds=(0,), keep=1, named=[[0], [1, 2]])
    serving = {a: s.serves for a, s in found.items() if s.part == 8000 and s.serves <= 64}
    assert serving == {0: 1, 1: 4, 2: 6}


def test_dear_fleets_do_not_run_beside_a_cheap_one_that_serves() -> None:
    trials: list[Trial] = []

    def serve(asked: Sequence[Trial]) -> list[Outcome]:
        trials.extend(asked)
        return [Outcome(meets=True) for _ in asked]

    arms = [Arm(params={}, usd_per_hour=p, power_w=None) for p in (6.0, 1.0, 1.4, 10.5)]
    found = race(arms, parts_of(8000), serve, seeds=(0,))
    assert {t.arm for t in trials} == {1, 2}
    assert found[0].out == found[3].out == DEAR
    trials.clear()
    race(arms, parts_of(8000), serve, seeds=(0,), named=[[1], [3]])
    assert {t.arm for t in trials} == {1, 2, 3}


def test_a_kind_that_an_early_part_left_out_comes_back_if_it_may_be_cheaper() -> None:
    """The cheapest of the beginning needs many chips for the whole."""

    def serve(asked: Sequence[Trial]) -> list[Outcome]:
        return [Outcome(meets=t.chips >= (9 if t.arm == 0 and t.part == 8000 else 1))
                for t in asked]  # fmt: skip

    arms = [Arm(params={}, usd_per_hour=p, power_w=None) for p in (1.0, 1.9, 5.0)]
    found = race(arms, parts_of(8000), serve, seeds=(0,), keep=1)
    assert [found[a].part for a in (0, 1, 2)] == [8000] * 3
    assert min((s.serves * arms[a].usd_per_hour, a) for a, s in found.items()) == (1.9, 1)
