"""Text from tokens that come one by one: whole characters only, the same text in the end."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Sequence
from itertools import islice

from c2c.transformer.text.spelling import Spelling

__all__ = ["TextStream"]

_ESCAPED = re.compile("[\ud800-\udfff]")  # a byte that is no UTF-8
_LONGEST = 4  # bytes of a character


class TextStream:
    """Takes token ids, gives the text that is certain so far.

    The pieces of `push` and the rest from `finish`, joined, are what decoding all ids at once
    gives. A character whose bytes are spread over tokens comes out whole, with the last of them.
    Decoded at once, a byte `<0xNN>` that fits nowhere spoils the whole run of such tokens that it
    is in; here characters that are whole stay.

    Attributes:
      length: of the text so far, in characters.
    """

    def __init__(
        self,
        spelling: Spelling,
        *,
        skip_special_tokens: bool,
        kept: Collection[int] = (),
        after: Sequence[int] = (),
    ) -> None:
        """Begin a text.

        Args:
          spelling: of the tokens.
          skip_special_tokens: whether they have no text.
          kept: those that have one all the same.
          after: tokens that the text goes on after, whose own text is not given.
        """
        self._spelling = spelling
        self._skipped = (
            spelling.special.difference(kept) if skip_special_tokens else frozenset[int]()
        )
        # Of bytes that are no UTF-8 the library makes one U+FFFD each only where they are tokens.
        self._errors = "replace" if spelling.is_byte_level else "surrogateescape"
        self._decoder = codecs.getincrementaldecoder("utf-8")(self._errors)
        self._before: str | None = None
        self.length = self._begin = 0
        last = islice((token for token in reversed(after) if self._name(token)), _LONGEST)
        for token in reversed(list(last)):
            self.push(token)
        self.length = self._begin = 0

    def push(self, token: int) -> str:
        """Take one token id; return the new text, often empty."""
        self._begin = self.length
        name = self._name(token)
        if name is None:
            return ""
        data = self._spelling.data_of(name, self._before)
        self._before = name
        return self._taken(data)

    def finish(self) -> str:
        """Return what was held back; incomplete characters come as U+FFFD."""
        return self._taken(b"", final=True)

    def offset(self, token: int) -> int:
        """Return where in the text the token begins that was pushed last.

        Of a part of a character, that is where the character begins.
        """
        return max(self._begin, self.length - len(self._spelling.text(token)))

    def _name(self, token: int) -> str | None:
        """Return a token's name; None of one that is skipped, or that means nothing."""
        return None if token in self._skipped else self._spelling.name(token)

    def _taken(self, data: bytes, *, final: bool = False) -> str:
        text = _ESCAPED.sub("\N{REPLACEMENT CHARACTER}", self._decoder.decode(data, final))
        self.length += len(text)
        return text
