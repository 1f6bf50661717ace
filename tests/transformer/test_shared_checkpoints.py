"""Every family against outputs that Hugging Face transformers computed from the same files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from c2c.transformer import load, new_cache
from c2c.transformer.layers.forward import run
from tests.tiers import tiered

FOLDERS = (
    *("llama", "llama_bf16", "llama_tied", "llama_sharded", "mistral", "mixtral", "mixtral_bf16"),
    *("qwen2", "qwen3", "qwen3_bf16", "qwen3_moe", "qwen3_moe_bf16"),
)
PROMPTS, NEW_TOKENS, PAGE_TOKENS = 9, 32, 16
TOLERANCE, RMS = 2e-4, 2e-5  # of the references' README


@pytest.fixture
def checkpoints(shared_part: Callable[[str], Path]) -> Path:
    return shared_part("checkpoints")


@pytest.mark.parametrize("name", tiered(FOLDERS, "qwen3_moe"))
def test_all_prompts_in_one_batch(name: str, checkpoints: Path) -> None:
    """Nine prompts of 1 to 200 tokens as rows of one batch: logits of all, then 32 tokens each."""
    model = load(checkpoints / name)
    reference = np.load(checkpoints / "reference" / f"{name}.npz")
    prompts = [reference[f"prompt_{i}_ids"] for i in range(PROMPTS)]
    longest = max(map(len, prompts))
    width = -(-(longest + NEW_TOKENS) // PAGE_TOKENS)
    cache = new_cache(
        model.spec,
        pages=PROMPTS * width,
        page_tokens=PAGE_TOKENS,
        dtype=np.float32,
        tables=np.arange(PROMPTS * width, dtype=np.int32).reshape(PROMPTS, width),
    )
    tokens = np.zeros((PROMPTS, longest), np.int32)
    positions = np.full_like(tokens, -1)
    for row, ids in enumerate(prompts):
        tokens[row, : len(ids)] = ids
        positions[row, : len(ids)] = np.arange(len(ids))
    logits, cache = run(model.params, tokens, positions, cache, model.spec, linear=model.linear)
    every = np.asarray(logits)
    for i, ids in enumerate(prompts):
        found = every[i, : len(ids)]
        top = np.take_along_axis(found, reference[f"prompt_{i}_top8_ids"].astype(np.int64), axis=1)
        errors = np.concatenate(
            [
                (found[-1] - reference[f"prompt_{i}_last_logits"]).ravel(),
                (top - reference[f"prompt_{i}_top8_logits"]).ravel(),
            ]
        )
        if f"prompt_{i}_all_logits" in reference:
            errors = np.append(errors, found - reference[f"prompt_{i}_all_logits"])
        assert np.abs(errors).max() < TOLERANCE
        assert np.sqrt((errors**2).mean()) < RMS
    lengths = np.array([len(ids) for ids in prompts], np.int32)
    token = every[np.arange(PROMPTS), lengths - 1].argmax(axis=1)
    drawn = [token]
    for step in range(NEW_TOKENS - 1):
        logits, cache = run(
            model.params,
            token[:, None].astype(np.int32),
            (lengths + step)[:, None],
            cache,
            model.spec,
            linear=model.linear,
        )
        token = np.asarray(logits)[:, 0].argmax(axis=1)
        drawn.append(token)
    expected = np.array([reference[f"greedy_{i}_ids"] for i in range(PROMPTS)])
    np.testing.assert_array_equal(np.array(drawn).T, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama_sharded", "qwen2"])
def test_the_public_calls(name: str, checkpoints: Path) -> None:
    model = load(checkpoints / name, dtype="float32")
    reference = np.load(checkpoints / "reference" / f"{name}.npz")
    for i in (1, 5):
        ids = reference[f"prompt_{i}_ids"]
        logits = model.logits(ids)
        assert logits.shape == (len(ids), model.spec.vocab)
        assert np.abs(logits[-1] - reference[f"prompt_{i}_last_logits"]).max() < TOLERANCE
        expected = reference[f"greedy_{i}_ids"].tolist()
        assert model.generate(ids, max_new_tokens=32, temperature=0.0) == expected
        stop = expected[4]
        stopped = expected[: expected.index(stop) + 1]
        assert model.generate(ids, 32, stop_tokens=[stop]) == stopped
    assert model.tokenizer is not None
    assert model.eos_ids
    text = "The licensor grants you a right."
    assert model.tokenizer.decode(model.tokenizer.encode(text), skip_special_tokens=True) == text
