"""Choices of an answer: conversion of tokens to text, up to an end token or stop string."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class Piece:
    """New part of a choice: its parts, visible tokens, and their scores."""

    parts: Parts
    tokens: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)


class Choice:
    """A choice in progress, which the scheduler serves as a request of its own.

    Attributes:
      index: index of the choice in its answer.
      prompt: index of the prompt in its request.
      found: prompt tokens found in the prefix cache for this choice.
      tokens: tokens so far, without the one that ends the text.
      scores: log-probabilities of these tokens, if asked for.
      drawn: number of generated tokens, including hidden ones.
      finish: `finish_reason` of the choice; None while it is in progress.
      parts: parts so far.
      begun_s: time of creation.
      times_s: times of the first token and the last.
    """

    def __init__(
        self,
        link: Link,
        gate: asyncio.Semaphore,
        *,
        index: int,
        prompt: int,
        decoder: TextStream | None,
        stop: StopText,
        hidden: frozenset[int],
        parser: Parser | None,
        echo: Sequence[int],
        only_echo: bool,
        fields: Mapping[str, Any],
    ) -> None:
        """Create a choice; its request is sent when `pieces` is iterated."""
        self.index, self.prompt, self.found = index, prompt, 0
        self.tokens: list[int] = []
        self.scores: list[TokenScore] = []
        self.drawn = 0
        self.finish: str | None = None
        self.parts = Parts()
        self._parser = parser
        self._failure = "cancelled"
        self.begun_s = time.monotonic()
        self.times_s: list[float] = []
        self._link, self._hidden = link, hidden
        self._decoder, self._stop = decoder, stop
        self._echo, self._only_echo = echo, only_echo
        self._prompt: list[say.Scored] = []
        self._gate, self._fields = gate, fields
        self._number: int | None = None
        self._is_over = False

    @property
    def outcome(self) -> str:
        """Outcome of the request: `finish`, or the reason of its failure."""
        return self.finish or self._failure

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield new parts until the choice ends and `finish` is set."""
        async with self._gate:
            self._number, answers = self._link.ask(**self._fields_now())
            try:
                while True:
                    frame = await answers.get()
                    if isinstance(frame, say.Tokens):
                        self._prompt += frame.prompt
                        self.found = frame.found or self.found
                        if not frame.tokens:
                            continue
                        if self._echo:
                            yield self._echoed()
                        if self._only_echo:
                            continue
                    if isinstance(frame, say.Ended):
                        self._is_over = True
                        self._end(frame)
                        rest = self._parsed(self._rest())
                        if rest.parts.found:
                            yield rest
                        return
                    piece = self._take(frame)
                    if self._stop.found is not None:
                        self.finish = self.finish or "stop"
                        self._link.abort(self._number, is_done=True)
                        self._is_over = True
                        yield piece
                        return
                    if piece.parts.found or piece.tokens:
                        yield piece
            finally:
                self.close()

    @property
    def stopped_by(self) -> str | None:
        """Stop string that ended the text; None if none did."""
        return self._stop.found

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Tool calls so far, in OpenAI's form."""
        return [] if self._parser is None else self._parser.calls

    def _parsed(
        self, text: str, tokens: Sequence[int] = (), scores: Sequence[TokenScore] = ()
    ) -> Piece:
        """Return a piece whose thought and tool calls are separated from its text."""
        new = Parts()
        if self._parser is not None:
            is_over = self._is_over or self._stop.found is not None
            new = self._parser.push(text, is_over=is_over)
            if is_over and self.calls and self.finish in (None, "stop"):
                self.finish = "tool_calls"
        elif text:
            new.add("text", text)
        self.parts.found += new.found
        return Piece(new, [*tokens], [*scores])

    def _fields_now(self) -> Mapping[str, Any]:
        """Return the fields of the request, with the deadline less the time spent waiting."""
        deadline_s = self._fields.get("deadline_s")
        if deadline_s is None:
            return self._fields
        left_s = self.begun_s + deadline_s - time.monotonic()
        return {**self._fields, "deadline_s": max(left_s, 1e-9)}

    def _echoed(self) -> Piece:
        """Return the echoed prompt as the first piece."""
        ids, text, scores = list(self._echo), "", []
        told = [None, *self._prompt] if self._prompt else [None]
        for token, score in zip_longest(ids, told):
            if self._decoder is not None:
                text += self._decoder.push(token)
            offset = 0 if self._decoder is None else self._decoder.offset(token)
            scores.append(
                TokenScore(token, None, (), offset)
                if score is None
                else TokenScore(token, score.logprob, score.top, offset)
            )
        self._echo = ()
        self.tokens += ids
        self.scores += scores
        return self._parsed(text, ids, scores)

    def _take(self, frame: say.Tokens) -> Piece:
        now_s = time.monotonic()
        self.times_s = [self.times_s[0] if self.times_s else now_s, now_s]
        self.drawn += len(frame.tokens)
        shown: list[int] = []
        scores: list[TokenScore] = []
        text = ""
        for token, score in zip_longest(frame.tokens, frame.scores):  # no scores, or one each
            if token in self._hidden:
                continue
            shown.append(token)
            if self._decoder is not None:
                text += self._decoder.push(token)
            if score is not None:
                offset = 0 if self._decoder is None else self._decoder.offset(token)
                scores.append(TokenScore(token, score.logprob, score.top, offset))
        self.tokens += shown
        self.scores += scores
        return self._parsed(self._stop.push(text), shown, scores)

    def _end(self, frame: say.Ended) -> None:
        if frame.why not in ("stop", "length"):
            self._failure = frame.why
            raise after_end(frame.why, frame.retry_s)
        self.finish = "length" if self._only_echo else frame.why

    def _rest(self) -> str:
        held = "" if self._decoder is None else self._stop.push(self._decoder.finish())
        if self._stop.found is not None:
            self.finish = "stop"
        return held + self._stop.finish()

    def close(self) -> None:
        """Cancel the request unless it has ended or was never sent."""
        if self._number is None:
            return
        if not self._is_over:
            self._is_over = True
            self._link.abort(self._number)
        self._link.forget(self._number)
