"""Checkpoints of random float32 weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from c2c.errors import SettingError

__all__ = [
    "END",
    "SERVED_SHAPES",
    "SHAPES",
    "SHAPES_135M",
    "config_of",
    "write_checkpoint",
    "write_model",
    "write_models",
]

END = 2
"""End-of-text token; servers differ in whether they sample it when told to ignore the end."""

BASE: dict[str, Any] = {
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "vocab_size": 8192,
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama-18m": {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
    "qwen3-8m": {
        "model_type": "qwen3",
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "use_sliding_window": False,
    },
    "mixtral-15m": {
        "model_type": "mixtral",
        "hidden_size": 192,
        "intermediate_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
}
"""Models of random weights, small enough that calls take as long as reading weights."""
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
    if shape["model_type"] in ("llama", "qwen3")
}  # fmt: skip
"""Shapes that llama.cpp computes as Hugging Face does, by name."""


_CLASSES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def write_model(name: str, folder: Path, seed: int) -> Path:
    """Write a float32 checkpoint of a shape; return its folder."""
    from c2c.models import from_hf_config
    from c2c.transformer.weights.random_source import RandomSource

    if name not in SHAPES:
        raise SettingError("name", name, f"one of {', '.join(SHAPES)}")
    config = BASE | dict(SHAPES[name])
    source = RandomSource(from_hf_config(config, name), np.random.default_rng(seed))
    return write_checkpoint(config, source, folder)


def write_checkpoint(
    config: Mapping[str, Any],
    source: Any,
    folder: Path,
    change: Callable[[dict[str, np.ndarray]], None] | None = None,
) -> Path:
    """Write a source's tensors as a float32 checkpoint, altered by any `change`."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "float32"}))
    tensors = {tensor: np.empty(source.shape(tensor), np.float32) for tensor in source.names}
    for tensor, values in tensors.items():
        source.read(tensor, values)
    if change is not None:
        change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def config_of(shape: str) -> dict[str, Any]:
    """Return the checkpoint configuration of one of `SERVED_SHAPES`."""
    config = BASE | dict(SERVED_SHAPES[shape])
    return config | {"architectures": [_CLASSES[config["model_type"]]]}


def write_models(shapes: Sequence[str], models: int, seed: int, folder: Path) -> dict[str, Path]:
    """Write checkpoints into a folder; return their paths by name."""
    from c2c.models import from_hf_config
    from c2c.transformer.weights.random_source import RandomSource

    result = {}
    for k in range(models):
        name, config = f"model{k}", config_of(shapes[k % len(shapes)])
        source = RandomSource(from_hf_config(config, name), np.random.default_rng((seed, k)))
        result[name] = write_checkpoint(config, source, folder / name, _no_end)
    return result


def _no_end(tensors: dict[str, np.ndarray]) -> None:
    # Its logit is 0, never the largest of thousands.
    tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])[END] = 0.0
