"""Bytes of tokens, by a tokenizer's decoder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import tokenizers

__all__ = ["Spelling", "byte_alphabet", "parts"]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_COMPOSED = 4  # maximum characters that normalisation composes into one
_BEFORE = "a"  # any token that is a letter, so that the next one is within a text


def byte_alphabet() -> dict[str, int]:
    """Return the byte of a byte-level vocabulary's characters: itself, or U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


def parts(step: Any) -> list[Mapping[str, Any]]:
    """Return the settings of a tokenizer's step or parts."""
    result = [] if step is None else [json.loads(step.__getstate__())]
    for one in result:
        for name in ("decoders", "normalizers", "pretokenizers"):
            result += one.get(name, ())
    return result


def _keeps_length(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Replace":
        return len(step["pattern"].get("String", "")) == len(step["content"]) > 0
    return step["type"] in ("Sequence", "Prepend", "NFC", "NFD", "NFKC", "NFKD", "Lowercase")


def _keeps_all(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Split":
        return bool(step["behavior"] != "Removed")
    return step["type"] in ("Sequence", "ByteLevel", "Metaspace", "Digits")


class Spelling:
    """Texts of tokens.

    Characters of byte-level vocabularies are bytes; the decoder has other tokens' texts, by the
    previous one.

    Attributes:
      special: tokens that can be skipped.
      has_bytes: whether tokens `<0xNN>` are bytes.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Wrap the library's object, complete."""
        self._backend = backend
        kinds = {part["type"] for part in parts(backend.decoder)}
        self.is_byte_level = "ByteLevel" in kinds
        self.has_bytes = "ByteFallback" in kinds
        added = backend.get_added_tokens_decoder()
        self.special = frozenset(number for number, token in added.items() if token.special)
        self._alphabet = byte_alphabet()

    def name(self, token: int) -> str | None:
        """Return a token's spelling, or None."""
        return self._backend.id_to_token(token)

    def data(self, token: int) -> bytes:
        """Return a token's bytes within a text."""
        name = self.name(token)
        return b"" if name is None else self.data_of(name, _BEFORE)

    def text(self, token: int) -> str:
        """Return a token's text within a text, with U+FFFD for parts of a character."""
        return self.data(token).decode(errors="replace")

    def data_of(self, name: str, before: str | None) -> bytes:
        """Return a token's bytes by name."""
        if self.is_byte_level:
            try:
                return bytes(self._alphabet[character] for character in name)
            except KeyError:  # an added token, written as it is
                return name.encode()
        if self.has_bytes and (byte := _BYTE.fullmatch(name)) and (before or byte[1] != "20"):
            return bytes([int(byte[1], 16)])
        names = [] if before is None else [before]
        return self._decoded([*names, name])[len(self._decoded(names)) :].encode()

    def longest(self) -> int | None:
        """Return a token's most characters; None if unbounded."""
        backend = self._backend
        vocabulary = backend.get_vocab(with_added_tokens=True)
        added = backend.get_added_tokens_decoder().values()
        cuts, model = parts(backend.pre_tokenizer), backend.model
        in_bytes = self.is_byte_level and any(cut["type"] == "ByteLevel" for cut in cuts)
        if (
            not isinstance(model, tokenizers.models.BPE)
            or not (in_bytes or (self.has_bytes and model.byte_fallback))
            or any(name not in vocabulary for name in (self._alphabet if in_bytes else _BYTES))
            or any(token.lstrip or token.rstrip for token in added)
            or not all(map(_keeps_length, parts(backend.normalizer)))
            or not all(map(_keeps_all, cuts))
        ):
            return None
        return max(map(len, vocabulary)) * (1 if backend.normalizer is None else _COMPOSED)

    def _decoded(self, names: list[str]) -> str:
        decoder = self._backend.decoder
        return " ".join(names) if decoder is None else decoder.decode(names)
