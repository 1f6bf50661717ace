"""Small tokenizers of the kinds that checkpoints come with."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

__all__ = ["CORPUS", "KINDS", "byte_fallback", "byte_level"]

CORPUS = [
    "The quick brown fox doesn't jump over 12345 lazy dogs.", "naïve café, 日本語のテキスト 🙂🙃",
    "def f(x):\n    return x + 1\n\n", "  spaces   and\ttabs\r\n", "We've 3.14 and don't stop",
]  # fmt: skip


def byte_level() -> tokenizers.Tokenizer:
    """A small BPE tokenizer with two special tokens and one that is added but not special."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|a|>", "<|end of text|>"],
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS * 3, trainer)
    # Only now, so that there are merges of digits, which must not be used.
    assert "23" in backend.get_vocab()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.add_tokens([AddedToken("<tool>", normalized=False, special=False)])
    return backend


def byte_fallback(kind: str = "strip") -> tokenizers.Tokenizer:
    """SentencePiece's form: spaces are a character, unknown characters are bytes.

    Llama's and Mistral's have the space before the first word prepended and stripped ("strip"), or
    `Metaspace` does both ("metaspace"); Gemma's have none ("plain").
    """
    words = ["<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdef", "▁a", "ab", "▁ab"]
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    vocabulary = {word: index for index, word in enumerate([*words, "▁▁"])}
    merges.append(("▁", "▁"))
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True))
    if kind == "metaspace":
        space = {"prepend_scheme": "first", "split": False}
        backend.pre_tokenizer = pre_tokenizers.Metaspace(**space)
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(**space)])
    else:
        spaces = [normalizers.Replace(" ", "▁")]
        prepended = [normalizers.Prepend("▁")] if kind == "strip" else []
        backend.normalizer = normalizers.Sequence([*prepended, *spaces])
        stripped = [decoders.Strip(" ", 1, 0)] if kind == "strip" else []
        backend.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *stripped]
        )
    backend.add_special_tokens(["<s>"])
    backend.add_tokens([AddedToken("<tool>", normalized=False, special=False)])
    return backend


def words(kind: str) -> tokenizers.Tokenizer:
    """Whole words without a decoder, parts of words in the way of BERT, or words with an end."""
    if kind == "wordpiece":
        vocabulary = ["[UNK]", *"abcd", "##a", "##b", "##ab", "ab", "."]
        model = models.WordPiece({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]")
        backend = tokenizers.Tokenizer(model)
        backend.decoder = decoders.WordPiece()
    elif kind == "suffix":
        vocabulary = ["[UNK]", *"abcd", "a</w>", "b</w>", "c</w>", "d</w>", "ab</w>"]
        model = models.BPE(
            {word: i for i, word in enumerate(vocabulary)}, [("a", "b</w>")],
            unk_token="[UNK]", end_of_word_suffix="</w>",
        )  # fmt: skip
        backend = tokenizers.Tokenizer(model)
        backend.decoder = decoders.BPEDecoder()
    else:
        model = models.WordLevel({w: i for i, w in enumerate(["[UNK]", *"abcd"])}, "[UNK]")
        backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["[UNK]", "<s>"])
    return backend


KINDS = {
    "byte level": byte_level(),
    "strip": byte_fallback(),
    "metaspace": byte_fallback("metaspace"),
    "plain": byte_fallback("plain"),
    **{kind: words(kind) for kind in ("wordpiece", "suffix", "word level")},
}
