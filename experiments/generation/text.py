"""Conversion of prompts to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from c2c.errors import DataError, SettingError
from c2c.models import ModelSpec
from c2c.transformer import Model, Wanted, buckets_of
from c2c.transformer.layers.rope import context_tokens, depends_on_length
from c2c.transformer.text.stop_text import StopText
from c2c.transformer.text.tokenizer import Tokenizer
from experiments.generation.prompts import Prompt

__all__ = ["Answer", "Asked", "asked", "encoded", "is_sentence", "tokenizer_of", "wanted_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Encoded prompt.

    Attributes:
      new: most tokens, within the context.
      stops: end tokens, left out of the text.
      eos: the checkpoint's own.
    """

    prompt: Prompt
    ids: tuple[int, ...]
    chat: bool
    new: int
    stops: frozenset[int]
    eos: frozenset[int]


def tokenizer_of(model: Model) -> Tokenizer:
    """Return the model's tokenizer."""
    if model.tokenizer is None:
        raise DataError("checkpoint", "it has no tokenizer.json, which text generation needs")
    return model.tokenizer


def asked(model: Model, prompt: Prompt) -> Asked:
    """Return a prompt encoded for a model."""
    tokenizer = tokenizer_of(model)
    ids, chat = encoded(tokenizer, prompt)
    context = model.context
    if not 0 < len(ids) < context:
        raise SettingError(
            "prompt", f"{len(ids)} tokens", f"from 1 to {context - 1}: the model's context is "
            f"{context} tokens, answer included",
        )  # fmt: skip
    for token in ids:
        if token >= model.spec.vocab:
            raise DataError(
                "checkpoint", f"its tokenizer has token {token}, its model only {model.spec.vocab}"
            )
    eos = frozenset((*model.eos_ids, *tokenizer.eos_ids) if prompt.stop_at_eos else ())
    return Asked(
        prompt=prompt,
        ids=tuple(ids),
        chat=chat,
        new=min(prompt.max_new_tokens, context - len(ids)),
        stops=eos | _stop_tokens(prompt, tokenizer, model.spec.vocab),
        eos=eos,
    )


def encoded(tokenizer: Tokenizer, prompt: Prompt) -> tuple[list[int], bool]:
    """Return a prompt's tokens, and whether the chat template applied."""
    chat = prompt.chat == "true" or (
        prompt.chat == "auto"
        and tokenizer.chat_template is not None
        and (prompt.system is not None or is_sentence(prompt.text))
    )
    if prompt.system is not None and not chat:
        raise SettingError("system", prompt.system, "null, since there is no chat template")
    if chat:
        messages = [{"role": "user", "content": prompt.text}]
        if prompt.system is not None:
            messages.insert(0, {"role": "system", "content": prompt.system})
        return tokenizer.encode_chat(messages), True
    return tokenizer.encode(prompt.text), False


def wanted_of(prompts: Sequence[Prompt], spec: ModelSpec, tokenizer: Tokenizer | None) -> Wanted:
    """Return a single prompt's shapes, to compile ahead."""
    if len(prompts) != 1 or tokenizer is None or depends_on_length(spec):
        return Wanted(buckets=())
    (prompt,) = prompts
    ids, _ = encoded(tokenizer, prompt)
    room = context_tokens(spec) - len(ids)
    if not ids or room < 1:  # refused later, with its full error
        return Wanted(buckets=())
    return Wanted(
        buckets=buckets_of(len(ids), min(prompt.max_new_tokens, room)),
        draws=(prompt.temperature > 0,),
        scores=False,
    )


def is_sentence(text: str) -> bool:
    """Return whether a text ends like a sentence; other texts are to be continued.

    >>> is_sentence("Why is the sky blue?"), is_sentence("The capital of France is")
    (True, False)
    """
    return text.rstrip().rstrip("\"'”’»)]*_").endswith((".", "?", "!", "…", "。", "？", "！"))


def _stop_tokens(prompt: Prompt, tokenizer: Tokenizer, vocab: int) -> frozenset[int]:
    special = {
        token.content: number
        for number, token in tokenizer.backend.get_added_tokens_decoder().items()
        if token.special
    }
    tokens = set()
    for stop in prompt.stop:
        if isinstance(stop, int):
            if not 0 <= stop < vocab:
                raise SettingError("stop", stop, f"a text, or a token from 0 to {vocab - 1}")
            tokens.add(stop)
        elif stop in special:
            tokens.add(special[stop])
    return frozenset(tokens)


class Answer:
    """New tokens of one prompt, and their final text."""

    def __init__(self, request: Asked, tokenizer: Tokenizer) -> None:
        self.asked = request
        self.tokens: list[int] = []
        self.times_s: list[float] = []  # time of each token
        self.ended: str | None = None  # eos, stop_token, stop_text, length, context
        self._pieces: list[str] = []
        self._stream = tokenizer.stream(
            skip_special_tokens=True, after=() if request.chat else request.ids
        )
        self._stop = StopText([s for s in request.prompt.stop if isinstance(s, str)])

    @property
    def text(self) -> str:
        """Text returned so far."""
        return "".join(self._pieces)

    @property
    def stop_text(self) -> str | None:
        """Stop string that ended the text, or None."""
        return self._stop.found

    def push(self, token: int, at_s: float) -> str:
        """Append a token; return new text, and set `ended` at the last."""
        self.tokens.append(token)
        self.times_s.append(at_s)
        piece = ""
        if token in self.asked.stops:
            self.ended = "eos" if token in self.asked.eos else "stop_token"
        else:
            piece = self._stop.push(self._stream.push(token))
            if self._stop.found is None and len(self.tokens) == self.asked.new:
                limit = self.asked.prompt.max_new_tokens
                self.ended = "length" if self.asked.new == limit else "context"
        if self.ended is not None:
            piece += self._rest()
        if self._stop.found is not None:  # the last bytes may have completed one
            self.ended = "stop_text"
        self._pieces.append(piece)
        return piece

    def finish(self) -> str:
        """Return text held back at an early end."""
        if self.ended is not None:
            return ""
        self._pieces.append(self._rest())
        return self._pieces[-1]

    def _rest(self) -> str:
        piece = self._stop.push(self._stream.finish())
        return piece + self._stop.finish()
