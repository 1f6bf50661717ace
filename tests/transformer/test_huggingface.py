"""Unusual features of transformers' checkpoints, against NumPy in float64.

`tests/transformer/test_peer.py` compares with transformers itself, where it is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c2c.transformer import Reference, Staged, load
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


@pytest.mark.slow
@pytest.mark.parametrize("linear", [Reference(by_layer=False), Staged()])
def test_layers_that_are_not_alike_under_other_strategies(linear: Any, made: Make) -> None:
    model, _, _ = made("mixed")
    other, _, _ = made("mixed", "float32", linear)
    ids = prompt(4)
    assert np.abs(model.logits(ids) - other.logits(ids)).max() < TOLERANCE / 4
    assert model.generate(ids, 4) == other.generate(ids, 4)


@pytest.mark.slow
def test_layers_that_are_not_alike_in_host_memory(made: Make) -> None:
    """Two-byte floats: activations are rounded in the same places, sums are in another order."""
    ids = prompt(6)
    expected = made("mixed", "bfloat16")[0].logits(ids)
    found = made("mixed", "bfloat16", "hybrid")[0].logits(ids)
    assert np.sqrt(((found - expected) ** 2).mean()) < 0.05 * expected.std()


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
    made = {k: v for k, v in tensors.items() if ".experts." not in k}
    for layer in range(config["num_hidden_layers"]):
        path = f"model.layers.{layer}.{folder}"
        if f"{path}.gate.weight" not in tensors:
            continue
        made[f"model.layers.{layer}.mlp.gate.weight"] = made.pop(f"{path}.gate.weight")
        count = len(tensors[f"{path}.gate.weight"])
        gate, up, down = (
            np.stack([tensors[f"{path}.experts.{e}.{name}.weight"] for e in range(count)])
            for name in names
        )
        into = f"model.layers.{layer}.mlp.experts"
        made[f"{into}.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        made[f"{into}.down_proj"] = down
    return made
