"""Generation through `Model`: seeds, stops, limits; parameters drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.models import from_hf_config
from c2c.transformer import Hybrid, Model, Reference, Staged, random_params
from tests.tiers import tiered
from tests.transformer.random_checkpoints import config_of

IDS = [5, 17, 3, 80, 41]
Make = Callable[..., Any]


def test_a_seed_fixes_the_text(made: Make) -> None:
    model = made("llama")[0]
    hot = {"temperature": 1.5, "top_p": 0.95, "top_k": 40}
    first, again, other = (model.generate(IDS, 12, **hot, seed=seed) for seed in (3, 3, 4))
    assert len(first) == 12
    assert first == again
    assert first != other
    assert all(0 <= token < model.spec.vocab for token in first)


def test_a_penalty_forbids_repetition(made: Make) -> None:
    model = made("llama")[0]
    tokens = model.generate(IDS, 24, repetition_penalty=1e6)
    # Divided by a million, logits that were positive lose to any other that is.
    assert len({*IDS, *tokens}) == len(IDS) + 24
    assert len(set(model.generate(IDS, 24))) < 24


def test_stops_end_the_text_and_are_returned(made: Make) -> None:
    model = made("llama")[0]
    free = model.generate(IDS, 16)
    stop = free[3]
    expected = free[: free.index(stop) + 1]
    assert model.generate(IDS, 16, stop_tokens=[stop]) == expected
    ending = replace(model, eos_ids=(stop,))
    assert ending.generate(IDS, 16) == free
    assert ending.generate(IDS, 16, stop_at_eos=True) == expected
    assert list(ending.stream(IDS, 16, stop_at_eos=True)) == expected


def test_lengths_beyond_a_page_and_a_bucket(made: Make) -> None:
    """A cache of one page more, and a prompt of several pages, continue the same text."""
    model = made("llama")[0]
    long = model.generate(IDS, 80)
    assert model.generate([*IDS, *long[:70]], 10) == long[70:]
    assert model.generate(IDS, 0) == []
    assert model.generate(IDS, 1) == long[:1]


def test_settings_are_checked_before_anything_runs(made: Make) -> None:
    model = made("llama")[0]
    for settings in ({"max_new_tokens": -1}, {"temperature": -0.5}, {"top_p": 0.0}):
        with pytest.raises(SettingError, match=next(iter(settings))):
            model.generate(IDS, **settings)


@pytest.mark.parametrize("family", tiered(["qwen3", "mixtral"]))
def test_random_parameters_are_the_same_model_wherever_they_are(family: str) -> None:
    spec = from_hf_config(config_of(family), family)
    logits = []
    for linear in (Reference(), Reference(by_layer=False), Staged(), Hybrid()):
        rng = np.random.default_rng(0)
        params = random_params(spec, rng, dtype="bfloat16", placement=linear.placement)
        logits.append(Model(spec=spec, params=params, linear=linear).logits(IDS))
    assert logits[0].std() > 0.1
    for other in logits[1:]:
        assert np.sqrt(((other - logits[0]) ** 2).mean()) < 0.1 * logits[0].std()
