"""Streaming decoder, in whole characters."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Sequence
from itertools import islice

from c2c.transformer.text.token_bytes import Spelling

__all__ = ["TextStream"]

_ESCAPED = re.compile("[\ud800-\udfff]")  # an invalid UTF-8 byte
_LONGEST = 4  # maximum bytes of a character


class TextStream:
    """Streaming decoder that emits each token's certain text.

    Pieces join to all ids' decoded text, but for invalid bytes `<0xNN>`.
    """

    def __init__(
        self,
        spelling: Spelling,
        *,
        skip_special_tokens: bool,
        exceptions: Collection[int] = (),
        after: Sequence[int] = (),
    ) -> None:
        """Start a text."""
        self._spelling = spelling
        self._skipped = (
            spelling.special.difference(exceptions) if skip_special_tokens else frozenset[int]()
        )
        # Of bytes that are no UTF-8 the library makes one U+FFFD each only where they are tokens.
        self._errors = "replace" if spelling.is_byte_level else "surrogateescape"
        self._decoder = codecs.getincrementaldecoder("utf-8")(self._errors)
        self._before: str | None = None
        self._open = b""
        self.length = self._begin = 0
        last = islice((token for token in reversed(after) if self._name(token)), _LONGEST)
        for token in reversed(list(last)):
            self.push(token)
        self.length = self._begin = 0
        self._open = self._decoder.getstate()[0]  # part of a character, of `after`
        self._since = b""  # bytes of the text while it is incomplete

    def push(self, token: int) -> str:
        """Add a token; return the new text, often empty."""
        self._begin = self.length
        name = self._name(token)
        if name is None:
            return ""
        data = self._spelling.data_of(name, self._before)
        self._before = name
        return self._taken(data)

    def finish(self) -> str:
        """Return text held back, with U+FFFD for partial characters."""
        return self._taken(b"", final=True)

    def offset(self, token: int) -> int:
        """Return the last token's (first) character index in the text."""
        return max(self._begin, self.length - len(self._spelling.text(token)))

    def _name(self, token: int) -> str | None:
        return None if token in self._skipped else self._spelling.name(token)

    def _taken(self, data: bytes, *, final: bool = False) -> str:
        if self._open:
            data = self._after_open(data, final=final)
        text = _ESCAPED.sub("\N{REPLACEMENT CHARACTER}", self._decoder.decode(data, final))
        self.length += len(text)
        return text

    def _after_open(self, data: bytes, *, final: bool) -> bytes:
        self._since += data
        strict = codecs.getincrementaldecoder("utf-8")()
        try:
            is_over = strict.decode(self._open + self._since, final) != ""
        except UnicodeDecodeError as error:
            is_over = True
            if error.start == 0:
                self._decoder.reset()
                data = self._since
        if is_over:
            self._open = b""
        return data
