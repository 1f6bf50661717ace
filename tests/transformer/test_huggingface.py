"""Unusual features of transformers' checkpoints, against NumPy in float64.

`tests/transformer/test_peer.py` compares with transformers itself, where it is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c2c.transformer import load
from tests.tiers import tiered
from tests.transformer.plain_model import plain_logits
from tests.transformer.random_checkpoints import VARIANTS, write

TOLERANCE = 2e-4
LENGTH = 21  # beyond the windows and original contexts here

Make = Callable[..., Any]


def prompt(seed: int, length: int = LENGTH) -> list[int]:
    return np.random.default_rng(seed).integers(0, 96, length).tolist()


@pytest.mark.parametrize("name", tiered(VARIANTS, "mixed"))
def test_logits_and_greedy_tokens_are_those_of_plain_float64(name: str, made: Make) -> None:
    model, config, tensors = made(name)
    ids = prompt(1)
    expected = plain_logits(config, tensors, ids)
    assert expected.std() > 0.3
    assert np.abs(model.logits(ids) - expected).max() < TOLERANCE
    ids = prompt(2, 16)
    for token in model.generate(ids, 5):
        logits = plain_logits(config, tensors, ids, prompt=16)[-1]
        assert logits[token] > logits.max() - TOLERANCE
        ids.append(token)


@pytest.mark.parametrize("name", ["longrope", "dynamic"])
def test_short_prompts_are_not_stretched(name: str, made: Make) -> None:
    """The length is that of the sequence, not of its padding."""
    model, config, tensors = made(name)
    ids = prompt(3, 17)  # padded to 32
    plain = {**config, "rope_parameters": None, "rope_scaling": None, "rope_theta": 1e4}
    if name == "dynamic":
        expected = plain_logits(plain, tensors, ids)
        assert np.abs(model.logits(ids) - expected).max() < TOLERANCE
    whole = model.logits(prompt(3, 21))[:17]
    assert np.abs(model.logits(ids) - whole).max() > 10 * TOLERANCE


def test_experts_that_are_one_tensor_a_layer(tmp_path: Path, made: Make) -> None:
    """transformers 5 computes with such tensors and can save them as they are."""
    for family in ("mixtral", "mixed"):
        model, config, tensors = made(family)
        fused = fuse(config, tensors)
        assert len(fused) < len(tensors)
        again = load(write(tmp_path / family, config, fused))
        ids = prompt(5)
        np.testing.assert_array_equal(again.logits(ids), model.logits(ids))


def fuse(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rename and stack a checkpoint's experts as in the modules of transformers 5."""
    mixtral = config["model_type"] == "mixtral"
    folder, names = ("mlp", ("gate_proj", "up_proj", "down_proj"))
    if mixtral:
        folder, names = "block_sparse_moe", ("w1", "w3", "w2")
    result = {k: v for k, v in tensors.items() if ".experts." not in k}
    for layer in range(config["num_hidden_layers"]):
        path = f"model.layers.{layer}.{folder}"
        if f"{path}.gate.weight" not in tensors:
            continue
        result[f"model.layers.{layer}.mlp.gate.weight"] = result.pop(f"{path}.gate.weight")
        count = len(tensors[f"{path}.gate.weight"])
        gate, up, down = (
            np.stack([tensors[f"{path}.experts.{e}.{name}.weight"] for e in range(count)])
            for name in names
        )
        into = f"model.layers.{layer}.mlp.experts"
        result[f"{into}.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        result[f"{into}.down_proj"] = down
    return result
