"""Text from tokens that come one by one: whole characters only, the same text in the end."""

from __future__ import annotations

import codecs
import json
from typing import Protocol

import tokenizers

__all__ = ["TextStream", "text_stream"]

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what bytes that are no UTF-8 decode to
_MAX_WAITING = 4  # a character has at most four bytes; what is still broken then stays broken


class TextStream(Protocol):
    """Takes token ids, gives the text that is certain so far.

    The pieces of `push` and the rest from `finish`, joined, are what decoding all ids at once
    gives. A character whose bytes are spread over tokens comes out whole, with the last of them.
    """

    def push(self, token: int) -> str:
        """Take one token id; return the new text, often empty."""
        ...

    def finish(self) -> str:
        """Return what was held back; incomplete characters come as U+FFFD."""
        ...


def text_stream(backend: tokenizers.Tokenizer, *, skip_special_tokens: bool) -> TextStream:
    """Return a stream that agrees with `backend.decode`."""
    if backend.decoder is not None:
        kind = json.loads(backend.decoder.__getstate__())["type"]
        if kind == "ByteLevel":
            return _ByteStream(backend, skip_special_tokens)
    return _WindowStream(backend, skip_special_tokens)


def byte_alphabet() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for.

    Printable bytes stand for themselves, the others for the characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


class _ByteStream:
    """Byte-level vocabularies: every token is bytes, so nothing has to be decoded twice."""

    def __init__(self, backend: tokenizers.Tokenizer, skip_special_tokens: bool) -> None:
        self._backend = backend
        self._alphabet = byte_alphabet()
        added = backend.get_added_tokens_decoder()
        self._skipped = {i for i, token in added.items() if token.special and skip_special_tokens}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        text = None if token in self._skipped else self._backend.id_to_token(token)
        if text is None:  # skipped, or an id of a padded vocabulary that means nothing
            return ""
        try:
            data = bytes(self._alphabet[character] for character in text)
        except KeyError:  # an added token, written as it is
            data = text.encode()
        return self._decoder.decode(data)

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowStream:
    """Any other vocabulary: decodes the last tokens again together with the new one.

    Tokens can look different at the beginning of a text (a leading space is dropped), so the window
    begins with tokens whose text is out already. Decoded at once, one byte that fits nowhere spoils
    the whole run of byte tokens it is in; here characters that were whole before it stay.
    """

    def __init__(self, backend: tokenizers.Tokenizer, skip_special_tokens: bool) -> None:
        self._backend = backend
        self._skip = skip_special_tokens
        self._window: list[int] = []
        self._done = 0  # tokens of the window whose text is out
        self._incomplete = 0  # tokens since then that left a character unfinished

    def push(self, token: int) -> str:
        self._window.append(token)
        new = self._new()
        if new.endswith(_REPLACEMENT):
            self._incomplete += 1
            if self._incomplete < _MAX_WAITING:
                return ""
        self._incomplete = 0
        if new:
            self._window = self._window[self._done :]
            self._done = len(self._window)
        return new

    def finish(self) -> str:
        new = self._new()
        self._done = len(self._window)
        return new

    def _new(self) -> str:
        decode = self._backend.decode
        out = decode(self._window[: self._done], skip_special_tokens=self._skip)
        return decode(self._window, skip_special_tokens=self._skip)[len(out) :]
