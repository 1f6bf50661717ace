"""Random programs captured by two processes, restored in a third, compared word by word."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.papers.medusa.emulation_case import Outcome, judge, prepare
from experiments.papers.medusa.synthetic import Shape

shapes = st.builds(
    Shape, seed=st.integers(0, 1 << 40), launches=st.integers(1, 20), standing=st.integers(1, 7),
    passing=st.integers(0, 6), has_structs=st.booleans(), has_maps=st.booleans(),
    has_ends=st.booleans(), has_dag=st.booleans(), threads=st.integers(1, 3),
)  # fmt: skip


def check(shape: Shape, refused: Counter[str]) -> None:
    outcome = judge(prepare(shape))
    refused["cases"] += 1
    refused.update(r.why for r in outcome.refusals)
    assert outcome.wrong == 0
    assert outcome.refusals or (outcome.words and outcome.is_equal)


@pytest.mark.parametrize("count", [600, pytest.param(20_000, marks=pytest.mark.soak)])
def test_differential_never_restores_a_wrong_word(count: int) -> None:
    refused: Counter[str] = Counter()

    @settings(max_examples=count)
    @given(shapes)
    def many(shape: Shape) -> None:
        check(shape, refused)

    many()
    assert refused["cases"] >= count
    assert refused.total() - refused["cases"] <= refused["cases"] // 100, refused


def plain(seed: int) -> Shape:
    """The case of the paper's rule: every address is a parameter of 8 bytes."""
    return Shape(seed=seed, has_structs=False, has_maps=False, has_ends=False)


def test_the_papers_rule_is_right_on_what_it_is_made_for() -> None:
    for seed in range(20):
        outcome = judge(prepare(plain(seed), is_adversarial=False), "paper")
        assert outcome.wrong == 0
        assert outcome.is_equal


def test_the_papers_rule_is_wrong_on_integers_that_look_like_addresses() -> None:
    judged = [judge(prepare(plain(seed)), "paper") for seed in range(20)]
    assert sum(outcome.wrong for outcome in judged) > 20


def test_the_papers_rule_misses_addresses_in_structs_and_tensor_maps() -> None:
    for feature in ("has_structs", "has_maps"):
        shapes_with = [
            Shape(seed=seed, **{"has_structs": False, "has_maps": False, feature: True})
            for seed in range(10)
        ]
        judged = [judge(prepare(s, is_adversarial=False), "paper") for s in shapes_with]
        assert sum(outcome.wrong for outcome in judged) > 0


def test_ptx_is_never_wrong_and_refuses_what_no_declaration_says() -> None:
    judged: list[Outcome] = [judge(prepare(plain(seed)), "ptx") for seed in range(20)]
    assert all(outcome.wrong == 0 for outcome in judged)
    assert any(outcome.refusals for outcome in judged)  # hidden kernels have no PTX
