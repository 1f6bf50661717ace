"""Language models of vision-language checkpoints, under either version's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c2c.transformer import load, save_model
from tests.transformer.plain_model import plain_logits
from tests.transformer.random_checkpoints import config_of, tensors_of, write
from tests.transformer.test_forward import TOLERANCE, prompt

SECTIONS = {"mrope_section": [2, 3, 3]}  # of positions that are equal for texts
CASES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "qwen3_vl": (
        "qwen3", "model.language_model.", "model.visual.blocks.0.attn.qkv.weight",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_interleaved": True,
                             **SECTIONS}},
    ),
    "qwen2_5_vl": (
        "qwen2", "model.language_model.", "visual.merger.mlp.0.weight",
        {"rope_scaling": {"type": "mrope", **SECTIONS}},
    ),
    "gemma3": (
        "gemma3_text", "language_model.model.", "vision_tower.vision_model.post_layernorm.weight",
        {},
    ),
    "llama4": (
        "llama4_text", "language_model.model.", "vision_model.layernorm_post.weight", {},
    ),
    "kimi_k25": (
        "kimi_k2", "language_model.model.", "mm_projector.proj.0.weight", {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", CASES)
def test_texts_are_those_of_the_language_model_alone(family: str, tmp_path: Path) -> None:
    inner, start, image, more = CASES[family]
    config = config_of(inner)
    tensors = tensors_of(config)
    outer = {
        "model_type": family,
        "text_config": config | {"model_type": inner} | more,
        "vision_config": {"hidden_size": 8, "depth": 1},
        "tie_word_embeddings": config["tie_word_embeddings"],
    }
    stored = {start + n.removeprefix("model."): t for n, t in tensors.items() if "lm_head" not in n}
    head = "language_model." if family in ("llama4", "kimi_k25") else ""
    stored |= {head + n: t for n, t in tensors.items() if "lm_head" in n}
    folder = write(tmp_path / "from", outer, stored | {image: np.ones((4, 8), np.float32)})
    model, ids = load(folder, "float32"), prompt(1)
    assert np.abs(model.logits(ids) - plain_logits(config, tensors, ids)).max() < TOLERANCE
    save_model(model, folder, tmp_path / "into")
    np.testing.assert_array_equal(load(tmp_path / "into", "float32").logits(ids), model.logits(ids))
