"""Inputs that must not change the results of `forward`; `test_families.py` has the results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import numpy as np
import pytest

from c2c.transformer import Hybrid, forward, load, new_cache
from c2c.transformer.layers.forward import _groups, run
from c2c.transformer.running.generate import prompt_logits
from tests.compilations import compilations
from tests.tiers import tiered
from tests.transformer.random_checkpoints import tensors_of, write

LENGTH = 21
# Largest error of a float32 logit, as promised; logits here have a deviation near 2.
TOLERANCE = 2e-4

Make = Callable[..., Any]


def prompt(seed: int, length: int = LENGTH, vocab: int = 96) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, length).tolist()


class Batch:
    """Sequences in one paged cache, whose pages are deliberately out of order."""

    def __init__(self, model: Any, rows: int, page_tokens: int = 4, width: int = 8) -> None:
        self.model, self.width = model, width
        self.tables = np.arange(rows * width, dtype=np.int32).reshape(width, rows).T
        self.cache = new_cache(
            model.spec,
            pages=rows * width,
            page_tokens=page_tokens,
            dtype=model.params.dtype,
            tables=self.tables,
        )

    def __call__(self, tokens: Any, positions: Any, **settings: Any) -> np.ndarray:
        logits, self.cache = run(
            self.model.params,
            np.asarray(tokens, np.int32),
            np.asarray(positions, np.int32),
            self.cache,
            self.model.spec,
            linear=self.model.linear,
            **settings,
        )
        return np.asarray(logits)


@pytest.mark.parametrize("family", tiered(["qwen2", "mixtral"], "mixtral"))
def test_padding_changes_nothing(family: str, made: Make) -> None:
    model, _, _ = made(family)
    ids = prompt(4, 9)
    exact = Batch(model, 1)([ids], [range(9)])
    # what padding holds, and pages and rows that are not used, must not matter
    for junk in (0, 95):
        tokens = np.full((3, 16), junk)
        positions = np.full((3, 16), -1)
        tokens[1, :9], positions[1, :9] = ids, np.arange(9)
        padded = Batch(model, 3)(tokens, positions)
        assert np.abs(padded[1, :9] - exact[0]).max() < TOLERANCE / 4


@pytest.mark.parametrize("family", tiered(["llama", "qwen3_moe"]))
def test_rows_do_not_see_their_neighbours(family: str, made: Make) -> None:
    model, _, _ = made(family)
    tokens = np.array([prompt(5, 8), prompt(6, 8), prompt(7, 8)])
    positions = np.tile(np.arange(8), (3, 1))
    first = Batch(model, 3)(tokens, positions)
    changed = tokens.copy()
    changed[[0, 2]] = prompt(8, 8)
    second = Batch(model, 3)(changed, positions)
    np.testing.assert_array_equal(first[1], second[1])
    assert np.abs(first[0] - second[0]).max() > 0.1


def test_only_wanted_logits_are_computed(made: Make) -> None:
    model, _, _ = made("llama")
    tokens, positions = [prompt(13, 8), prompt(14, 8)], [range(8)] * 2
    every = Batch(model, 2)(tokens, positions)
    some = Batch(model, 2)(tokens, positions, logit_indices=np.array([7, 15], np.int32))
    assert some.shape == (2, model.spec.vocab)
    np.testing.assert_allclose(some, every[:, 7], atol=TOLERANCE / 4)


def test_forward_is_pure(made: Make) -> None:
    model, _, _ = made("llama")
    cache = Batch(model, 1).cache
    before = np.asarray(cache.k).copy()
    args = (model.params, np.array([prompt(15, 8)]), np.arange(8)[None], cache, model.spec)
    compiled = jax.jit(forward, static_argnames="spec")
    first, new = compiled(*args)
    second, _ = compiled(*args)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(cache.k, before)
    assert np.abs(np.asarray(new.k)).max() > 0


def test_hybrid_weights_are_in_host_memory_and_alpha_recompiles_nothing(made: Make) -> None:
    model, _, _ = made("llama", "bfloat16", "hybrid")
    half = Hybrid().with_alpha(qkv=0.5)
    kinds = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(dict(model.params.projections))}
    assert kinds == {"pinned_host"}
    assert model.params.embed.data.memory_kind == "pinned_host"
    ids = prompt(18)
    first = prompt_logits(model.params, ids, model.spec, half)
    other = half.with_alpha(qkv=0.1, down=0.9, head=0.0)
    with compilations() as compiled:
        second = prompt_logits(model.params, ids, model.spec, other)
    assert not compiled
    with compilations() as compiled:
        prompt_logits(model.params, prompt(18, 40), model.spec, other)
    assert compiled  # another shape: the counter counts
    np.testing.assert_allclose(first, second, atol=0.2)


def test_two_models_of_one_architecture_share_executables(made: Make, tmp_path: Path) -> None:
    model, config, _ = made("llama")
    ids = prompt(19)
    first = model.logits(ids)
    other = load(write(tmp_path / "other", config, tensors_of(config, seed=5)))
    assert other.spec.name != model.spec.name
    with compilations() as compiled:
        second = other.logits(ids)
    assert not compiled
    assert np.abs(second - first).max() > 0.1


@pytest.mark.parametrize(
    ("tokens", "positions", "settings", "message"),
    [
        (np.zeros((2, 4)), np.zeros((2, 3)), {}, "positions of shape"),
        (np.zeros((3, 4)), np.zeros((3, 4)), {}, "expected 2 rows"),
        (np.zeros((2, 4)), np.zeros((2, 4)), {"decode_rows": 1}, "decode_rows=0, got 1"),
        (np.zeros(4), np.zeros(4), {"decode_rows": 3}, "expected -1 rows"),
        (np.zeros(0), np.zeros(0), {}, "not empty"),
        (np.zeros(5), np.zeros(5), {}, "2 rows of equal length"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    tokens: Any, positions: Any, settings: Any, message: str, made: Make
) -> None:
    with pytest.raises(ValueError, match=message):
        Batch(made("llama")[0], 2)(tokens, positions, **settings)


def test_positions_without_a_page_are_stored_nowhere(made: Make) -> None:
    """A row without pages must not write into those of others."""
    model, _, _ = made("llama")
    batch = Batch(model, 2)
    batch([prompt(20, 8), prompt(21, 8)], [range(8)] * 2)
    before = np.asarray(batch.cache.k).copy()
    batch.tables[0] = -1
    batch.cache = batch.cache.with_tables(batch.tables)
    batch([prompt(22, 8), [0] * 8], [range(8), [-1] * 8])
    np.testing.assert_array_equal(batch.cache.k, before)


def test_calls_of_several_layers_have_one_kind_and_one_size() -> None:
    places = [(False, 0), *((True, k) for k in range(6)), *((False, k) for k in (1, 2))]
    found = [list(group) for group in _groups(places, 4)]
    assert found == [[0], [1, 2, 3], [4, 5, 6], [7, 8]]
    assert [list(group) for group in _groups(places, 1)] == [[k] for k in range(9)]
