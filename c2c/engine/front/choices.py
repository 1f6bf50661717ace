"""Choices of an answer: text of tokens, up to an end or stop string."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from c2c.engine import messages as say
from c2c.engine.front.failures import after_end
from c2c.engine.front.link import Link
from c2c.engine.front.parser import Parser, Parts
from c2c.engine.front.scores import TokenScore
from c2c.transformer.text.stop_text import StopText
from c2c.transformer.text.streaming import TextStream

__all__ = ["Choice", "Piece"]

type _Score = tuple[float | None, tuple[tuple[int, float], ...]]  # and likeliest tokens


@dataclass(frozen=True, slots=True)
class Piece:
    """New parts of a choice, visible tokens and scores."""

    parts: Parts
    tokens: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Choice:
    """A choice in progress, a request that iteration of `pieces` sends.

    Attributes:
      gate: limits concurrent choices.
      hidden: tokens outside the answer.
      echo: prompt tokens that begin the answer.
      only_echo: whether the answer is the prompt alone.
      found: cached prompt tokens.
      tokens: so far, without an end token.
      drawn: generated, hidden ones included.
      finish: `finish_reason`; None while in progress.
    """

    link: Link
    gate: asyncio.Semaphore
    index: int
    prompt: int
    decoder: TextStream | None
    stop: StopText
    hidden: frozenset[int]
    parser: Parser | None
    echo: Sequence[int]
    only_echo: bool
    fields: Mapping[str, Any]
    found: int = 0
    tokens: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    embedding: bytes = b""
    drawn: int = 0
    finish: str | None = None
    parts: Parts = field(default_factory=Parts)
    begun_s: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108 (tests replace it)
    times_s: list[float] = field(default_factory=list)
    _failure: str = "cancelled"
    _scored: list[say.Scored] = field(default_factory=list)  # of the prompt
    _number: int | None = None
    _is_over: bool = False

    @property
    def outcome(self) -> str:
        """`finish`, or the reason of failure."""
        return self.finish or self._failure

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield new parts until `finish` is set."""
        async with self.gate:
            self._number, answers = self.link.ask(**self._fields_now())
            try:
                while True:
                    frame = await answers.get()
                    if isinstance(frame, say.Tokens):
                        self._scored += frame.prompt
                        self.found = frame.found or self.found
                        if not frame.tokens:
                            continue
                        if self.echo:
                            yield self._echoed()
                        if self.only_echo:
                            continue
                    if isinstance(frame, say.Ended):
                        self._is_over = True
                        self._end(frame)
                        rest = self._parsed(self._rest())
                        if rest.parts.found:
                            yield rest
                        return
                    piece = self._take(frame)
                    if self.stop.found is not None:
                        self.finish = self.finish or "stop"
                        self.link.abort(self._number, is_done=True)
                        self._is_over = True
                        yield piece
                        return
                    if piece.parts.found or piece.tokens:
                        yield piece
            finally:
                self.close()

    @property
    def stopped_by(self) -> str | None:
        """Stop string that ended the text, or None."""
        return self.stop.found

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Tool calls so far, in OpenAI's form."""
        return [] if self.parser is None else self.parser.calls

    def _parsed(
        self, text: str, tokens: Sequence[int] = (), scores: Sequence[TokenScore] = ()
    ) -> Piece:
        new = Parts()
        if self.parser is not None:
            is_over = self._is_over or self.stop.found is not None
            new = self.parser.push(text, is_over=is_over)
            if is_over and self.calls and self.finish in (None, "stop"):
                self.finish = "tool_calls"
        elif text:
            new.add("text", text)
        self.parts.found += new.found
        return Piece(new, [*tokens], [*scores])

    def _fields_now(self) -> Mapping[str, Any]:
        deadline_s = self.fields.get("deadline_s")
        if deadline_s is None:
            return self.fields
        left_s = self.begun_s + deadline_s - time.monotonic()
        return {**self.fields, "deadline_s": max(left_s, 1e-9)}

    def _echoed(self) -> Piece:
        scores = [(None, ()), *((score.logprob, score.top) for score in self._scored)]
        ids, self.echo = self.echo, ()
        return self._spelled(list(zip_longest(ids, scores)), lambda text: text)

    def _take(self, frame: say.Tokens) -> Piece:
        now_s = time.monotonic()
        self.times_s = [self.times_s[0] if self.times_s else now_s, now_s]
        self.drawn += len(frame.tokens)
        self.embedding = frame.scores[0].embedding if frame.scores else b""
        scores = ((score.logprob, score.top) for score in frame.scores)  # none, or one each
        pairs = zip_longest(frame.tokens, scores)
        return self._spelled([one for one in pairs if one[0] not in self.hidden], self.stop.push)

    def _spelled(
        self, pairs: Sequence[tuple[int, _Score | None]], cut: Callable[[str], str]
    ) -> Piece:
        text, scores = "", []
        for token, score in pairs:
            text += cut("" if self.decoder is None else self.decoder.push(token))
            if score is not None:
                offset = 0 if self.decoder is None else self.decoder.offset(token)
                scores.append(TokenScore(token, *score, offset))
        tokens = [token for token, _ in pairs]
        self.tokens += tokens
        self.scores += scores
        return self._parsed(text, tokens, scores)

    def _end(self, frame: say.Ended) -> None:
        if frame.why not in ("stop", "length"):
            self._failure = frame.why
            raise after_end(frame.why, frame.retry_s)
        self.finish = "length" if self.only_echo else frame.why

    def _rest(self) -> str:
        text = "" if self.decoder is None else self.stop.push(self.decoder.finish())
        if self.stop.found is not None:
            self.finish = "stop"
        return text + self.stop.finish()

    def close(self) -> None:
        """Cancel the request if it is under way."""
        if self._number is None:
            return
        if not self._is_over:
            self._is_over = True
            self.link.abort(self._number)
        self.link.forget(self._number)
