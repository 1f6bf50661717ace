"""Loaded model: the interface for notebooks and scripts."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from c2c.errors import SettingError
from c2c.models import ModelSpec, param_count
from c2c.ranges import Index, check_value
from c2c.transformer.executables import Executables
from c2c.transformer.layers.linear import Linear
from c2c.transformer.layers.params import Params
from c2c.transformer.layers.rope import context_tokens
from c2c.transformer.running.batch import Drawn, Request
from c2c.transformer.running.executor import OnDevice
from c2c.transformer.running.generate import (
    Bucket,
    Wanted,
    buckets_up_to,
    prompt_logits,
    stream_batch,
    warm,
)
from c2c.transformer.running.kv_pool import KvPool, Lease
from c2c.transformer.running.sampling import Sampling
from pallas_kernels.host_memory import PlacementReport, placement_report

if TYPE_CHECKING:  # a model that is not loaded from a file needs neither tokenizers nor gguf
    from c2c.transformer.text.tokenizer import Tokenizer

__all__ = ["Model", "Warmed"]


_WARM_CONTEXT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """Result of `Model.warm`, without executables already here."""

    loaded: int  # from the repository
    compiled: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Model:
    """A model with its parameters; created by `load`."""

    spec: ModelSpec
    params: Params
    linear: Linear
    tokenizer: Tokenizer | None = None  # None if the checkpoint has none
    eos_ids: tuple[int, ...] = ()
    executables: Executables | None = None  # None: jax compiles for this process

    def __repr__(self) -> str:
        bytes_by_kind = self.placement().bytes_by_kind
        where = ", ".join(f"{n / 1e6:.1f} MB in {kind}" for kind, n in bytes_by_kind.items() if n)
        return (
            f"Model({self.spec.name}: {self.spec.family}, {self.spec.layers} layers, "
            f"{param_count(self.spec) / 1e6:.1f} M parameters, {self.params.dtype}, {where}; "
            f"{self.linear}, context {self.context}, "
            f"{'no tokenizer' if self.tokenizer is None else f'{self.spec.vocab} tokens'})"
        )

    @property
    def context(self) -> int:
        """Maximum tokens of a sequence, prompt and answer."""
        return context_tokens(self.spec)

    def placement(self) -> PlacementReport:
        """Return the memory of every array, and bytes by memory."""
        return placement_report(self.params)

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Return the logits after each token: float32 [T, vocab].

        Raises:
          SettingError: no token, an unknown one, or more than the context.
        """
        return prompt_logits(
            self.params,
            self._fitting(ids, 0),
            self.spec,
            self.linear,
            executables=self.executables,
        )

    def executor(self, pool: KvPool, lease: Lease | None = None) -> OnDevice:
        """Return an executor over this pool."""
        return OnDevice(
            self.params, self.spec, self.linear, pool, executables=self.executables, lease=lease
        )

    def warm(
        self,
        buckets: Sequence[Bucket] | None = None,
        *,
        done: Callable[[Bucket], None] = lambda _: None,
    ) -> Warmed:
        """Prepare the executables of generation; nothing is computed.

        Args:
          buckets: of `buckets_of(prompt, new)`; by default all up to 1024 tokens.

        Raises:
          SettingError: loaded without executables.
        """
        if self.executables is None:
            raise SettingError("executables", None, '"auto" or a folder, to load the model with')
        before = self.executables.loaded, self.executables.compiled
        start = time.perf_counter()
        chosen = buckets_up_to(_WARM_CONTEXT) if buckets is None else buckets
        shapes = Wanted(buckets=tuple(chosen))
        warm(self.params, self.spec, self.linear, self.executables, shapes, done=done)
        return Warmed(
            loaded=self.executables.loaded - before[0],
            compiled=self.executables.compiled - before[1],
            seconds=time.perf_counter() - start,
        )

    @overload
    def stream(
        self,
        prompt: str,
        max_new_tokens: int = ...,
        temperature: float = ...,
        *,
        stop_at_eos: bool | None = ...,
        stop_tokens: Collection[int] = ...,
        **sampling: Any,
    ) -> Iterator[str]: ...
    @overload
    def stream(
        self,
        prompt: Sequence[int],
        max_new_tokens: int = ...,
        temperature: float = ...,
        *,
        stop_at_eos: bool | None = ...,
        stop_tokens: Collection[int] = ...,
        **sampling: Any,
    ) -> Iterator[int]: ...
    def stream(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = 32,
        temperature: float = 0.0,
        *,
        stop_at_eos: bool | None = None,
        stop_tokens: Collection[int] = (),
        **sampling: Any,
    ) -> Iterator[int] | Iterator[str]:
        """Return an iterator over new tokens, or pieces of text; arguments as in `generate`.

        Raises:
          SettingError: a token or setting outside its range.
        """
        if isinstance(prompt, str):
            ids: Sequence[int] = self._tokenizer("prompt", prompt).encode(prompt)
        else:
            ids = prompt
        is_text = isinstance(prompt, str)
        check_value(max_new_tokens, Index, "max_new_tokens")
        ends = is_text if stop_at_eos is None else stop_at_eos
        stop = frozenset((*stop_tokens, *(self._all_eos() if ends else ())))
        request = Request(
            ids=ids,
            max_new_tokens=max_new_tokens,
            sampling=Sampling(temperature=temperature, **sampling),
            stop=stop,
        )
        tokens = (drawn.token for drawn in self.stream_batch([request]))
        return self._texts(tokens, stop, ids) if is_text else tokens

    @overload
    def generate(
        self, prompt: str, max_new_tokens: int = ..., temperature: float = ..., **settings: Any
    ) -> str: ...
    @overload
    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int = ...,
        temperature: float = ...,
        **settings: Any,
    ) -> list[int]: ...
    def generate(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = 32,
        temperature: float = 0.0,
        **settings: Any,
    ) -> str | list[int]:
        """Return a prompt's continuation, without it: text for text, tokens for tokens.

        Args:
          max_new_tokens: fewer after a stop token.
          temperature: 0 selects the most likely token.
          settings: fields of `Sampling`; stop_tokens (returned, but not in a text); stop_at_eos,
            which adds the checkpoint's, by default for a text.

        Raises:
          SettingError: a token or setting outside its range, or prompt and answer beyond the
            context.
        """
        if isinstance(prompt, str):
            return "".join(self.stream(prompt, max_new_tokens, temperature, **settings))
        return list(self.stream(prompt, max_new_tokens, temperature, **settings))

    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        **settings: Any,
    ) -> str:
        """Return the answer to a chat, by the checkpoint's template.

        Args:
          messages: text, or mappings with "role" and "content".
          max_new_tokens: fewer at the end of the context.

        Raises:
          SettingError: no tokenizer, or a setting outside its range.
          DataError: no chat template, or it rejects the messages.
        """
        tokenizer = self._tokenizer("messages", messages)
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        ids = tokenizer.encode_chat(turns)
        stop = {*settings.pop("stop_tokens", ()), *self._all_eos()}
        new = max(1, min(max_new_tokens, self.context - len(ids)))
        tokens = self.stream(ids, new, temperature, stop_tokens=stop, **settings)
        return "".join(self._texts(tokens, stop))

    def stream_batch(self, requests: Sequence[Request], **settings: Any) -> Iterator[Drawn]:
        """Yield the tokens of many requests as they are drawn.

        Args:
          settings: rows, cache_tokens, chunk and ends of `stream_batch` in generate.py.

        Raises:
          SettingError: a token or setting outside its range, or a request that never fits.
        """
        eos = frozenset(self.eos_ids)
        inputs = [
            replace(
                r,
                ids=self._fitting(r.ids, r.max_new_tokens),
                stop=r.stop | eos if r.stop_at_eos else r.stop,
            )
            for r in requests
        ]
        return stream_batch(
            self.params,
            inputs,
            self.spec,
            self.linear,
            executables=self.executables,
            **settings,
        )

    def generate_batch(self, requests: Sequence[Request], **settings: Any) -> list[list[int]]:
        """Return each request's new tokens; arguments as in `stream_batch`."""
        texts: list[list[int]] = [[] for _ in requests]
        for drawn in self.stream_batch(requests, **settings):
            texts[drawn.request].append(drawn.token)
        return texts

    def _tokenizer(self, field: str, value: object) -> Tokenizer:
        if self.tokenizer is None:
            raise SettingError(field, value, "tokens: the checkpoint has no tokenizer")
        return self.tokenizer

    def _all_eos(self) -> tuple[int, ...]:
        return (*self.eos_ids, *(() if self.tokenizer is None else self.tokenizer.eos_ids))

    def _texts(
        self, tokens: Iterator[int], stop: Collection[int], after: Sequence[int] = ()
    ) -> Iterator[str]:
        text = self._tokenizer("prompt", None).stream(skip_special_tokens=True, after=after)
        for token in tokens:
            if token not in stop and (piece := text.push(token)):
                yield piece
        if rest := text.finish():
            yield rest

    def _fitting(self, ids: Sequence[int], new: int) -> list[int]:
        tokens = self._checked(ids)
        if len(tokens) > self.context:
            raise SettingError(
                "ids", f"{len(tokens)} tokens", f"at most the model's context, {self.context}"
            )
        if len(tokens) + new > self.context:
            raise SettingError(
                "max_new_tokens", new, f"at most {self.context - len(tokens)}: the model's context "
                f"is {self.context} tokens, the prompt has {len(tokens)}",
            )  # fmt: skip
        return tokens

    def _checked(self, ids: Sequence[int]) -> list[int]:
        tokens = [int(token) for token in ids]
        if not tokens:
            raise SettingError("ids", [], "at least one token")
        for token in tokens:
            if not 0 <= token < self.spec.vocab:
                raise SettingError("ids", token, f"tokens from 0 to {self.spec.vocab - 1}")
        return tokens
