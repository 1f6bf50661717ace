"""A catalog of tiny checkpoints with tokenizers and chat templates."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers

from tests.transformer.random_checkpoints import config_of, tensors_of, write

__all__ = ["VOCAB", "make_catalog"]

VOCAB = 96
_TEMPLATE = "{% for m in messages %}w1 {{ m.content }} {% endfor %}w2"


def make_catalog(folder: Path) -> Path:
    """Write models of two architectures, and two that cannot be served."""
    for name, family, seed in (("one", "llama", 0), ("two", "llama", 1), ("three", "qwen3", 2)):
        config = config_of(family) | {"eos_token_id": 7}
        path = write(folder / name, config, tensors_of(config, seed=seed))
        words = {f"w{i}": i for i in range(VOCAB)}
        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
        backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        backend.save(str(path / "tokenizer.json"))
        (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": _TEMPLATE}))
    bare = config_of("llama")
    write(folder / "bare", bare, tensors_of(bare, seed=3))  # without a tokenizer
    write(folder / "odd", bare | {"model_type": "mamba"}, tensors_of(bare))
    damaged = tensors_of(bare)
    damaged["model.norm.weight"][3] = float("nan")
    write(folder / "damaged", bare, damaged)
    return folder
