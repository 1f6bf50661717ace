"""A loaded model: what notebooks and scripts use."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from c2c.errors import SettingError
from c2c.models import ModelSpec, param_count
from c2c.transformer.batch import Drawn, Request, stream_batch
from c2c.transformer.executables import Executables
from c2c.transformer.executor import OnDevice
from c2c.transformer.generate import Bucket, Wanted, buckets_up_to, prompt_logits, stream, warm
from c2c.transformer.kv_pool import KvPool, Lease
from c2c.transformer.linear import Linear
from c2c.transformer.params import Params
from c2c.transformer.rope import context_tokens
from c2c.transformer.sampling import Sampling
from pallas_kernels.host_memory import PlacementReport, placement_report

if TYPE_CHECKING:  # a model that is not loaded from a file needs neither tokenizers nor gguf
    from c2c.transformer.text.tokenizer import Tokenizer

__all__ = ["Model", "Warmed"]


_WARM_CONTEXT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """Work of `Model.warm`; executables that this process had already are in neither number."""

    loaded: int  # from the repository
    compiled: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Model:
    """Parameters, their shape, and how they are multiplied. Made by `load`."""

    spec: ModelSpec
    params: Params
    linear: Linear
    tokenizer: Tokenizer | None = None  # None where the checkpoint has none
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
        """Tokens of a sequence at most, prompt and answer."""
        return context_tokens(self.spec)

    def placement(self) -> PlacementReport:
        """Say where every array is, and the bytes in host and device memory."""
        return placement_report(self.params)

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Return the logits that follow each token: float32 [T, vocab].

        Raises:
          SettingError: there is no token, one is outside the vocabulary, or there are more than
            the context has room for.
        """
        return prompt_logits(
            self.params,
            self._fitting(ids, 0),
            self.spec,
            self.linear,
            executables=self.executables,
        )

    def executor(self, pool: KvPool, lease: Lease | None = None) -> OnDevice:
        """Return what computes a runner's steps, with keys and values in this pool, by a lease."""
        return OnDevice(
            self.params, self.spec, self.linear, pool, executables=self.executables, lease=lease
        )

    def warm(
        self,
        buckets: Sequence[Bucket] | None = None,
        *,
        done: Callable[[Bucket], None] = lambda _: None,
    ) -> Warmed:
        """Have ready, before the first request, what generation runs; nothing is computed.

        Args:
          buckets: the shapes, like `buckets_of(prompt, new)`; by default all of sequences of up to
            1024 tokens.
          done: is told each bucket as it is ready.

        Returns:
          How much was loaded and how much was compiled.

        Raises:
          SettingError: the model has no executables to keep.
        """
        if self.executables is None:
            raise SettingError("executables", None, '"auto" or a folder, to load the model with')
        before = self.executables.loaded, self.executables.compiled
        start = time.perf_counter()
        chosen = buckets_up_to(_WARM_CONTEXT) if buckets is None else buckets
        wanted = Wanted(buckets=tuple(chosen))
        warm(self.params, self.spec, self.linear, self.executables, wanted, done=done)
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
        """Return new tokens, or pieces of text, as they are drawn; arguments as of `generate`.

        Raises:
          SettingError: a token or a setting is outside its range.
        """
        if isinstance(prompt, str):
            ids: Sequence[int] = self._tokenizer("prompt", prompt).encode(prompt)
        else:
            ids = prompt
        is_text = isinstance(prompt, str)
        if max_new_tokens < 0:
            raise SettingError("max_new_tokens", max_new_tokens, "a whole number from 0")
        drawn = Sampling(temperature=temperature, **sampling)
        ends = is_text if stop_at_eos is None else stop_at_eos
        stop = {*stop_tokens, *(self._all_eos() if ends else ())}
        tokens = stream(
            self.params,
            self._fitting(ids, max_new_tokens),
            self.spec,
            self.linear,
            max_new_tokens=max_new_tokens,
            sampling=drawn,
            stop=stop,
            executables=self.executables,
        )
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
        """Return what continues a prompt: text after a text, tokens after tokens.

        Args:
          prompt: a text, or at least one token.
          max_new_tokens: at most so many; fewer only if a stop token comes.
          temperature: 0 for the most likely token each time.
          settings: those of `Sampling` by their names, such as top_p and seed; stop_tokens, after
            any of which generation ends (it is returned, but is no part of a text); stop_at_eos,
            which adds the checkpoint's own, by default after a text.

        Returns:
          What is new only.

        Raises:
          SettingError: a token or a setting is outside its range, or prompt and answer together
            are longer than the context.
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
        """Return the model's answer, by the checkpoint's chat template.

        Args:
          messages: what the user says, or mappings with "role" and "content".
          max_new_tokens: at most so many; less where the context ends before.
          temperature: as of `generate`, like `settings`.

        Raises:
          SettingError: there is no tokenizer, or a setting is outside its range.
          DataError: the checkpoint has no chat template, or it refuses the messages.
        """
        tokenizer = self._tokenizer("messages", messages)
        asked = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        ids = tokenizer.encode_chat(asked)
        stop = {*settings.pop("stop_tokens", ()), *self._all_eos()}
        new = max(1, min(max_new_tokens, self.context - len(ids)))
        tokens = self.stream(ids, new, temperature, stop_tokens=stop, **settings)
        return "".join(self._texts(tokens, stop))

    def stream_batch(self, requests: Sequence[Request], **settings: Any) -> Iterator[Drawn]:
        """Yield the tokens of many requests as they are drawn; see `stream_batch` in batch.py.

        Args:
          requests: each with a prompt, sampling, seed and stops of its own.
          settings: rows, requests at the same time; cache_tokens, room in the cache; chunk, prompt
            tokens of one call; ends, which is told request and token and says whether it is over.

        Raises:
          SettingError: a token or a setting is outside its range, or a request can never fit.
        """
        eos = frozenset(self.eos_ids)
        given = [
            replace(
                r,
                ids=self._fitting(r.ids, r.max_new_tokens),
                stop=r.stop | eos if r.stop_at_eos else r.stop,
            )
            for r in requests
        ]
        return stream_batch(
            self.params,
            given,
            self.spec,
            self.linear,
            executables=self.executables,
            **settings,
        )

    def generate_batch(self, requests: Sequence[Request], **settings: Any) -> list[list[int]]:
        """Return the new tokens of each request; arguments and errors are `stream_batch`'s."""
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
        """Yield tokens as text, in whole characters, without the token that ends it.

        Args:
          tokens: as they come.
          stop: those that end the text.
          after: what the text goes on after; nothing of an answer in a chat.
        """
        text = self._tokenizer("prompt", None).stream(skip_special_tokens=True, after=after)
        for token in tokens:
            if token not in stop and (piece := text.push(token)):
                yield piece
        if rest := text.finish():
            yield rest

    def _fitting(self, ids: Sequence[int], new: int) -> list[int]:
        """Return a prompt that the context has room for, together with its answer."""
        known = self._checked(ids)
        if len(known) > self.context:
            raise SettingError(
                "ids", f"{len(known)} tokens", f"at most the model's context, {self.context}"
            )
        if len(known) + new > self.context:
            raise SettingError(
                "max_new_tokens", new, f"at most {self.context - len(known)}: the model's context "
                f"is {self.context} tokens, the prompt has {len(known)}",
            )  # fmt: skip
        return known

    def _checked(self, ids: Sequence[int]) -> list[int]:
        known = [int(token) for token in ids]
        if not known:
            raise SettingError("ids", [], "at least one token")
        for token in known:
            if not 0 <= token < self.spec.vocab:
                raise SettingError("ids", token, f"tokens from 0 to {self.spec.vocab - 1}")
        return known
