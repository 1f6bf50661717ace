"""Drawing tokens: the settings do what they say, and rows do not touch each other."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.transformer import Sampling, sample, sampling_rows
from c2c.transformer.running.sampling import penalised
from tests.tiers import tiered

VOCAB = 12
LOGITS = np.random.default_rng(3).standard_normal(VOCAB).astype(np.float32) * 2


def draw(count: int, seen: Any = None, logits: np.ndarray = LOGITS, **settings: Any) -> np.ndarray:
    """Draws of one row each, at steps 0, 1, ..."""
    rows = sampling_rows([Sampling(**settings)] * count)
    held = np.zeros((count, VOCAB), np.int16)
    if seen is not None:
        held[:, seen] = 1
    steps = np.arange(count, dtype=np.int32)
    return np.asarray(sample(penalised(np.tile(logits, (count, 1)), rows, held), rows, steps))


def chances(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def test_temperature_0_takes_the_largest_logit_and_the_first_of_equals() -> None:
    assert set(draw(8)) == {LOGITS.argmax()}
    tied = np.zeros(VOCAB, np.float32)
    tied[[4, 9]] = 1
    assert set(draw(8, logits=tied)) == {4}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("odd", "token"), [(np.nan, -1), (np.inf, -1), (-np.inf, 4)])
def test_no_token_is_drawn_from_nan_or_infinity(temperature: float, odd: float, token: int) -> None:
    logits = np.full(VOCAB, odd, np.float32)
    logits[4] = 1
    assert set(draw(8, logits=logits, temperature=temperature)) == {token}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    count = 4000
    found = np.bincount(draw(count, temperature=temperature), minlength=VOCAB) / count
    expected = chances(LOGITS / temperature)
    # five standard deviations of a binomial
    assert (np.abs(found - expected) < 5 * np.sqrt(expected / count) + 1e-3).all()


def test_top_k_and_top_p_cut_the_tail() -> None:
    order = np.argsort(-LOGITS)
    assert set(draw(500, temperature=3.0, top_k=3)) == set(order[:3])
    falling = chances(LOGITS)[order].cumsum()
    for p in (0.3, 0.7, 0.9):
        kept = order[: np.searchsorted(falling, p) + 1]
        assert set(draw(1500, temperature=1.0, top_p=p)) == set(kept)
    assert set(draw(50, temperature=1.0, top_p=1e-6)) == {order[0]}
    tied = np.array([3, 3, 3, *[0] * (VOCAB - 3)], np.float32)
    assert set(draw(300, temperature=1.0, top_k=2, logits=tied)) == {0, 1, 2}


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    best = int(LOGITS.argmax())
    assert set(draw(4, seen=[best], repetition_penalty=100.0)) == {int(np.argsort(-LOGITS)[1])}
    negative = -np.abs(LOGITS) - 1
    top = int(negative.argmax())
    assert set(draw(4, seen=[top], repetition_penalty=10.0, logits=negative)) != {top}
    count, seen = 4000, [best, int(LOGITS.argmin())]
    penalised = LOGITS.astype(np.float64).copy()
    for token in seen:
        penalised[token] *= 1.5 if penalised[token] < 0 else 1 / 1.5
    drawn = draw(count, seen=seen, temperature=1.0, repetition_penalty=1.5)
    expected = chances(penalised)
    found = np.bincount(drawn, minlength=VOCAB) / count
    assert (np.abs(found - expected) < 5 * np.sqrt(expected / count) + 1e-3).all()


def test_penalties_take_what_openais_formula_says() -> None:
    rng = np.random.default_rng(8)
    logits = rng.standard_normal((4, VOCAB)).astype(np.float32)
    prompt, answer = rng.integers(0, 2, (4, VOCAB)), rng.integers(0, 3, (4, VOCAB))
    asked = [
        Sampling(repetition_penalty=r, presence_penalty=p, frequency_penalty=f)
        for r, p, f in ((1, 0, 0), (1, 2, 0), (1, -0.5, 1.5), (1.3, 0.25, -2))
    ]
    held = (2 * answer + prompt).astype(np.int16)
    found = np.asarray(penalised(logits, sampling_rows(asked), held))
    for row, settings in enumerate(asked):
        expected = logits[row].astype(np.float64)
        factor = np.where(
            expected > 0, 1 / settings.repetition_penalty, settings.repetition_penalty
        )
        expected = np.where(held[row] > 0, expected * factor, expected)
        expected -= settings.frequency_penalty * answer[row]
        expected -= settings.presence_penalty * (answer[row] > 0)
        np.testing.assert_allclose(found[row], expected, atol=1e-6)


def test_min_p_cuts_what_is_far_less_likely_than_the_best() -> None:
    falling = chances(LOGITS)
    for share in (0.01, 0.2, 0.6):
        kept = set(np.flatnonzero(falling >= share * falling.max()))
        assert set(draw(3000, temperature=1.0, min_p=share)) == kept
    assert set(draw(50, temperature=2.0, min_p=1.0)) == {LOGITS.argmax()}
    tied = np.array([3, 3, *[0] * (VOCAB - 2)], np.float32)
    assert set(draw(300, temperature=1.0, min_p=1.0, logits=tied)) == {0, 1}


TINY = [1e-5, 1e-20, 1e-37, 1e-38, 1e-40, 1e-300, 5e-324]


@pytest.mark.parametrize("tiny", tiered(TINY, 1e-38, 1e-300, slow=1))
@pytest.mark.parametrize("logits", [LOGITS - 50, LOGITS + 50])
def test_tiny_settings_are_the_limits_that_they_go_to(tiny: float, logits: np.ndarray) -> None:
    """float32 takes a number below 1e-38 for 0, and a quotient by one beyond its range."""
    best = {logits.argmax()}
    assert set(draw(20, temperature=1.0, top_p=tiny, logits=logits)) == best
    assert set(draw(20, temperature=tiny, logits=logits)) == best
    assert set(draw(20, temperature=tiny, top_p=tiny, min_p=tiny, top_k=3, logits=logits)) == best
    free = draw(200, temperature=2.0, logits=logits)
    assert (draw(200, temperature=2.0, min_p=tiny, logits=logits) == free).all()
    # A held token with a positive logit beats all others, one with a negative logit loses nothing.
    held = [int(np.argsort(logits)[-2])]
    wanted = {held[0]} if logits[held[0]] > 0 or logits.max() < 0 else best
    for settings in ({}, {"temperature": 1.0, "top_k": 1}, {"temperature": tiny}):
        found = draw(5, held, repetition_penalty=tiny, logits=logits, **settings)
        assert set(found) == wanted, settings
    huge = draw(5, np.arange(VOCAB), repetition_penalty=1 / max(tiny, 1e-300), logits=logits)
    assert np.isin(huge, np.flatnonzero((logits > 0) | (logits == logits.max()))).all()


def test_both_halves_of_a_seed_count_and_small_ones_are_keys_of_jax() -> None:
    seeds = (5, 5 + (1 << 32), 5 << 32, 2**64 - 1)
    assert len({tuple(draw(12, temperature=5.0, seed=seed)) for seed in seeds}) == len(seeds)
    keys = [jax.random.fold_in(jax.random.key(2**32 - 1), k) for k in range(12)]
    expected = [int(jax.random.categorical(key, LOGITS)) for key in keys]
    assert draw(12, temperature=1.0, seed=2**32 - 1).tolist() == expected


def test_a_row_depends_on_its_own_seed_and_step_only() -> None:
    rng = np.random.default_rng(4)
    mine = Sampling(temperature=1.3, seed=77, top_p=0.95)
    drawn = set()
    for trial in range(5):
        others = [Sampling(temperature=t, seed=trial + 1) for t in (0.0, 0.4 + trial)]
        logits = rng.standard_normal((3, VOCAB)).astype(np.float32)
        logits[1] = LOGITS
        rows = sampling_rows([others[0], mine, others[1]])
        steps = np.array([trial, 6, 2 * trial], np.int32)
        drawn.add(int(np.asarray(sample(logits, rows, steps))[1]))
    assert len(drawn) == 1
    by_seed = {tuple(draw(20, temperature=2.0, seed=seed)) for seed in (1, 2, 2)}
    assert len(by_seed) == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1.0}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0.0},
        {"top_p": 1.5}, {"repetition_penalty": 0.0}, {"seed": -1}, {"seed": 2**64}, {"min_p": 1.5},
        {"min_p": float("nan")}, {"presence_penalty": float("inf")},
        {"frequency_penalty": float("nan")}, {"logit_bias": {3: float("inf")}},
    ],
)  # fmt: skip
def test_settings_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(settings))):
        Sampling(**settings)
