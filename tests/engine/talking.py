"""A catalog of one checkpoint that writes any text: its tokens are bytes and a few pairs."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.transformer.random_checkpoints import config_of, tensors_of, write

__all__ = ["END", "HERMES", "byte_tokenizer", "make_talking"]

END = "<|im_end|>"
HERMES = (
    "{% if tools %}Answer with <tool_call> and </tool_call> around JSON: {{ tools | tojson }}"
    "{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] "
    '%}<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson '
    "}}}</tool_call>{% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer(*more: tuple[str, bool]) -> Tokenizer:
    """Return a byte-level tokenizer with these added tokens, each special or not."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("{", '"'), ('"', "}"), ('"', ":"), ("a", "d"), ("t", "r")]
    words = {word: index for index, word in enumerate([*alphabet, *(a + b for a, b in pairs)])}
    backend = Tokenizer(models.BPE(words, pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    for text, is_special in ((END, True), *more):
        backend.add_tokens([AddedToken(text, normalized=False, special=is_special)])
    return backend


def make_talking(folder: Path) -> Path:
    """Write the checkpoint `talking`, and `bare`, which has no tokenizer."""
    backend = byte_tokenizer(("<tool_call>", False), ("</tool_call>", False))
    # More rows than tokens, as in many checkpoints.
    config = config_of("qwen3") | {
        "vocab_size": 270, "max_position_embeddings": 4096,
        "eos_token_id": backend.token_to_id(END),
    }  # fmt: skip
    path = write(folder / "talking", config, tensors_of(config, seed=4))
    backend.save(str(path / "tokenizer.json"))
    declared = {
        "chat_template": HERMES, "eos_token": END, "tokenizer_class": "PreTrainedTokenizerFast",
    }  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(declared))
    bare = config_of("llama")
    write(folder / "bare", bare, tensors_of(bare, seed=3))
    return folder
