"""Tokenizer of a GGUF file, by Hugging Face's library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.processors import TemplateProcessing

from c2c.errors import DataError
from c2c.transformer.gguf.header import Texts

__all__ = ["PRE_TOKENIZERS", "gguf_tokenizer", "special_id"]

# Pre-tokenizer pattern of each family, within whose pieces merges stay; published tokenizer.json
# files have the same patterns.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}
# Words of the vocabulary are taken whole, even where no sequence of merges leads to them.
_WHOLE_WORDS = {"llama-bpe", "llama3", "llama-v3", "tekken"}
_BOS_BY_DEFAULT = {"llama", "llama-bpe", "llama3", "llama-v3", "tekken"}

PRE_TOKENIZERS = ("gpt-2", "smollm", *_PATTERNS)


def gguf_tokenizer(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """Build the tokenizer from a GGUF file's metadata."""
    model = metadata.get("tokenizer.ggml.model")
    if model not in ("gpt2", "llama"):
        raise DataError(
            source, f"vocabulary kind {model!r}: only byte-level BPE ('gpt2') and SentencePiece's "
            "BPE ('llama') are supported", "Use a checkpoint with a tokenizer.json.",
        )  # fmt: skip
    tokens = _texts(metadata, "tokenizer.ggml.tokens", source)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise DataError(source, "damaged: tokenizer.ggml.tokens has the same token twice")
    pre = "llama" if model == "llama" else metadata.get("tokenizer.ggml.pre")
    build = _sentence_pieces if model == "llama" else _byte_level
    tokenizer = build(metadata, vocabulary, source)
    _add_special_tokens(tokenizer, metadata, tokens, source)
    _add_ends(tokenizer, metadata, tokens, str(pre), source)
    return tokenizer


def _byte_level(
    metadata: Mapping[str, Any], vocabulary: Mapping[str, int], source: str
) -> Tokenizer:
    pre = metadata.get("tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        raise DataError(
            source, f"pre-tokenizer {pre!r} is not supported",
            f"Supported: {', '.join(PRE_TOKENIZERS)}.",
        )  # fmt: skip
    pairs = [pair.partition(" ") for pair in _texts(metadata, "tokenizer.ggml.merges", source)]
    if not all(left and right and " " not in right for left, _, right in pairs):
        raise DataError(source, "damaged: tokenizer.ggml.merges has an entry that is not a pair")
    try:
        merges = [(left, right) for left, _, right in pairs]
        tokenizer = Tokenizer(
            BPE(vocab=dict(vocabulary), merges=merges, ignore_merges=pre in _WHOLE_WORDS)
        )
    except Exception as error:  # noqa: BLE001 (the library raises nothing narrower)
        raise DataError(source, f"damaged vocabulary: {error}") from None
    if "qwen" in pre:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_pieces(
    metadata: Mapping[str, Any], vocabulary: Mapping[str, int], source: str
) -> Tokenizer:
    """Neighbours that make a piece may merge, highest score first."""
    scores = metadata.get("tokenizer.ggml.scores")
    kinds = metadata.get("tokenizer.ggml.token_type", [TokenType.NORMAL] * len(vocabulary))
    if not isinstance(scores, list) or not len(scores) == len(kinds) == len(vocabulary):
        raise DataError(source, "tokenizer.ggml.scores or token_type: expected one a token")
    pieces = {t: scores[i] for t, i in vocabulary.items() if kinds[i] == TokenType.NORMAL}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in sorted(pieces, key=lambda piece: -pieces[piece])
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    unknown = next((t for t, i in vocabulary.items() if kinds[i] == TokenType.UNKNOWN), None)
    tokenizer = Tokenizer(
        BPE(vocab=dict(vocabulary), merges=merges, unk_token=unknown, fuse_unk=True,
            byte_fallback=True)
    )  # fmt: skip
    first = [normalizers.Prepend("▁")] * bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    tokenizer.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         *[decoders.Strip(" ", 1, 0)] * len(first)]
    )  # fmt: skip
    return tokenizer


def special_id(metadata: Mapping[str, Any], name: str, source: str) -> int | None:
    """Return the id of a special token such as "bos", or None."""
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    count = len(_texts(metadata, "tokenizer.ggml.tokens", source))
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise DataError(source, f"damaged: {key} is {value!r}, not one of {count} tokens")
    return value


def _texts(metadata: Mapping[str, Any], key: str, source: str) -> list[str]:
    value = metadata.get(key)
    if isinstance(value, Texts):
        return value.all
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise DataError(source, f"metadata key {key!r} is missing or not a list of texts")
    return value


def _pre_tokenizer(pre: str) -> PreTokenizer:
    if pre in _PATTERNS:
        first = pre_tokenizers.Split(Regex(_PATTERNS[pre]), "isolated")
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([first, last])
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), whole])
    return whole


def _add_special_tokens(
    tokenizer: Tokenizer, metadata: Mapping[str, Any], tokens: list[str], source: str
) -> None:
    kinds = metadata.get("tokenizer.ggml.token_type", [TokenType.NORMAL] * len(tokens))
    if len(kinds) != len(tokens):
        raise DataError(
            source, f"damaged: {len(kinds)} token types for {len(tokens)} tokens"
        )  # fmt: skip
    control = {TokenType.CONTROL, TokenType.UNKNOWN}
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind in control, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in control or kind == TokenType.USER_DEFINED
        ]
    )


def _add_ends(
    tokenizer: Tokenizer, metadata: Mapping[str, Any], tokens: list[str], pre: str, source: str
) -> None:
    pieces, used = ["$A"], []
    for name, default in (("bos", pre in _BOS_BY_DEFAULT), ("eos", False)):
        if not metadata.get(f"tokenizer.ggml.add_{name}_token", default):
            continue
        index = special_id(metadata, name, source)
        if index is None:
            raise DataError(source, f"adds {name.upper()} tokens but has no {name.upper()} id")
        pieces = [tokens[index], *pieces] if name == "bos" else [*pieces, tokens[index]]
        used.append((tokens[index], index))
    if used:
        tokenizer.post_processor = TemplateProcessing(single=pieces, special_tokens=used)
