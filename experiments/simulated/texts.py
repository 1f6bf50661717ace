"""Texts of a simulated endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

import c2c
from c2c.transformer.text.chat import ChatTemplate
from c2c.transformer.text.tokenizer import Tokenizer, tokenizer_from_folder

__all__ = ["read_tokenizer", "words_of"]

_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_SPECIAL = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
_VOCAB = 8192


def read_tokenizer(folder: Path | None) -> Tokenizer:
    """Return a folder's tokenizer; None: one trained on this package's sources."""
    if folder is not None:
        return tokenizer_from_folder(folder)
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB,
        special_tokens=_SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_sources(), trainer)
    return Tokenizer(
        backend=backend,
        eos_ids=(0,),  # the first special token
        chat_template=ChatTemplate(source=_TEMPLATE),
    )


def _sources() -> Iterator[str]:
    for file in sorted(Path(c2c.__file__).parent.rglob("*.py")):
        yield file.read_text(encoding="utf-8")


def words_of(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that answers are drawn from."""
    tokens = [
        token
        for token in range(tokenizer.vocab_size)
        if (text := tokenizer.decode([token])).startswith(" ")
        and text[1:].isalpha()
        and text[1:].isascii()
        and text.islower()
    ]
    return tuple(tokens) or tuple(range(tokenizer.vocab_size))
