"""Models of random float32 weights to serve: the size of small real ones, or tiny."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench.decode import BASE, SHAPES, write_checkpoint
from experiments.bench.servers.gguf_copy import ARCHITECTURES, END

__all__ = ["SERVED_SHAPES", "SHAPES_135M", "config_of", "write_models"]

SHAPES_135M: Mapping[str, Mapping[str, Any]] = {
    "llama-135m": {
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "vocab_size": 49152, "tie_word_embeddings": True,
    },
    "qwen3-135m": {
        "model_type": "qwen3", "hidden_size": 512, "intermediate_size": 1536,
        "num_hidden_layers": 32, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 64, "use_sliding_window": False, "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
}  # fmt: skip
SERVED_SHAPES: Mapping[str, Mapping[str, Any]] = {
    name: shape for name, shape in {**SHAPES, **SHAPES_135M}.items()
    if shape["model_type"] in ARCHITECTURES
}  # fmt: skip
"""Shapes of models that all servers can serve, by name."""


_CLASSES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def config_of(shape: str) -> dict[str, Any]:
    """Return the checkpoint configuration of one of `SERVED_SHAPES`."""
    config = BASE | dict(SERVED_SHAPES[shape])
    return config | {"architectures": [_CLASSES[config["model_type"]]]}


def write_models(shapes: Sequence[str], models: int, seed: int, folder: Path) -> dict[str, Path]:
    """Write models as checkpoints into a folder; return the path of each by name.

    Args:
      shapes: names of shapes, which the models take in turn.
      models: number of models.
      seed: seed of their weights.
      folder: folder of the checkpoints, made if missing.
    """
    from c2c.models import from_hf_config
    from c2c.transformer.weights.random_source import RandomSource

    found = {}
    for k in range(models):
        name, config = f"model{k}", config_of(shapes[k % len(shapes)])
        source = RandomSource(from_hf_config(config, name), np.random.default_rng((seed, k)))
        found[name] = write_checkpoint(config, source, folder / name, _no_end)
    return found


def _no_end(tensors: dict[str, np.ndarray]) -> None:
    # Its logit is 0, never the largest of thousands.
    tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])[END] = 0.0
