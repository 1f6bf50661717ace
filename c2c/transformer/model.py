"""A loaded model: what notebooks and scripts use."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from c2c.errors import DataError, SettingError
from c2c.models import ModelSpec, from_hf_config, load_spec
from c2c.transformer.batch import Drawn, Request, stream_batch
from c2c.transformer.checkpoint import load_params
from c2c.transformer.executables import Executables, executables_at
from c2c.transformer.formats import Quantization, Quantize, quantization_by_name
from c2c.transformer.fused_experts import split_experts
from c2c.transformer.generate import Bucket, buckets_up_to, prompt_logits, stream, warm
from c2c.transformer.leaves import Source
from c2c.transformer.linear import Hybrid, Linear, linear_by_name
from c2c.transformer.params import Params
from c2c.transformer.safetensors_file import SafetensorsCheckpoint
from c2c.transformer.sampling import Sampling
from pallas_kernels.host_memory import PlacementReport, placement_report

if TYPE_CHECKING:  # a model that is not loaded from a file needs neither tokenizers nor gguf
    from c2c.transformer.tokenizer import Tokenizer

__all__ = ["Model", "Warmed", "load"]


_WARM_CONTEXT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """What `Model.warm` did; executables that this process had already are in neither number."""

    loaded: int  # from the repository
    compiled: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Parameters, their shape, and how they are multiplied. Made by `load`."""

    spec: ModelSpec
    params: Params
    linear: Linear
    tokenizer: Tokenizer | None = None  # None where the checkpoint has none
    eos_ids: tuple[int, ...] = ()
    executables: Executables | None = None  # None: jax compiles for this process

    @classmethod
    def load(cls, path: Path | str, dtype: str = "float32", **settings: Any) -> Model:
        """Return the model at `path`; see `load`."""
        return load(path, dtype, **settings)

    def placement(self) -> PlacementReport:
        """Say where every array is, and the bytes in host and device memory."""
        return placement_report(self.params)

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Return the logits that follow each token: float32 [T, vocab].

        Raises:
          SettingError: there is no token, or one is outside the vocabulary.
        """
        return prompt_logits(
            self.params,
            self._checked(ids),
            self.spec,
            self.linear,
            executables=self.executables,
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
        warm(self.params, self.spec, self.linear, self.executables, chosen, done=done)
        return Warmed(
            loaded=self.executables.loaded - before[0],
            compiled=self.executables.compiled - before[1],
            seconds=time.perf_counter() - start,
        )

    def stream(
        self,
        ids: Sequence[int],
        max_new_tokens: int = 32,
        temperature: float = 0.0,
        *,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        stop_at_eos: bool = False,
        stop_tokens: Collection[int] = (),
    ) -> Iterator[int]:
        """Yield new tokens as they are drawn; the arguments are those of `generate`.

        Raises:
          SettingError: a token or a setting is outside its range.
        """
        if max_new_tokens < 0:
            raise SettingError("max_new_tokens", max_new_tokens, "a whole number from 0")
        sampling = Sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        )
        stop = {*stop_tokens, *(self.eos_ids if stop_at_eos else ())}
        return stream(
            self.params,
            self._checked(ids),
            self.spec,
            self.linear,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stop=stop,
            executables=self.executables,
        )

    def generate(
        self,
        ids: Sequence[int],
        max_new_tokens: int = 32,
        temperature: float = 0.0,
        **settings: Any,
    ) -> list[int]:
        """Return the tokens that continue `ids`.

        Args:
          ids: the prompt, at least one token.
          max_new_tokens: at most so many; fewer only if a stop token comes.
          temperature: 0 for the most likely token each time.
          settings: top_k, top_p, repetition_penalty and seed as in `Sampling`; stop_tokens, after
            any of which generation ends (it is returned); stop_at_eos, which adds the
            checkpoint's own.

        Returns:
          New tokens only.

        Raises:
          SettingError: a token or a setting is outside its range.
        """
        return list(self.stream(ids, max_new_tokens, temperature, **settings))

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
            replace(r, ids=self._checked(r.ids), stop=r.stop | eos if r.stop_at_eos else r.stop)
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

    def _checked(self, ids: Sequence[int]) -> list[int]:
        known = [int(token) for token in ids]
        if not known:
            raise SettingError("ids", [], "at least one token")
        for token in known:
            if not 0 <= token < self.spec.vocab:
                raise SettingError("ids", token, f"tokens from 0 to {self.spec.vocab - 1}")
        return known


def load(
    path: Path | str,
    dtype: str = "float32",
    *,
    linear: str | Linear = "reference",
    quantize: Quantize | Quantization | None = None,
    pool: Path | str | None = None,
    progress: bool | None = None,
    executables: Literal["auto"] | Path | str | None = "auto",
) -> Model:
    """Load a checkpoint: a folder in the layout of Hugging Face, or a GGUF file.

    Args:
      path: the folder (config.json, safetensors, tokenizer.json), or the file.
      dtype: of parameters, cache and activations: "float32", "bfloat16" or "float16".
      linear: a strategy or its name: "reference" (weights in device memory), "hybrid" (in host
        memory, read by our kernels; two-byte types only), "staged" (in host memory, copied).
      quantize: how projections are quantised while they are loaded: "int8", "fp8", "int4", or
        "stored" for the integers of a GGUF file as they are; see `Quantization`. None for floats.
      pool: file for weights in host memory that processes share; see `load_params`.
      progress: whether to draw a bar; by default where stderr is a terminal.
      executables: folder where compiled executables are kept, for any process and any model of
        this architecture; "auto" for that of `pallas_kernels.repository`, which if it cannot be
        written to is done without; None to compile for this process only.

    Raises:
      SettingError: a setting or the architecture is not supported.
      DataError: files are missing or damaged, or tensors do not fit the config.
    """
    path = Path(path)
    strategy = linear_by_name(linear) if isinstance(linear, str) else linear
    if isinstance(strategy, Hybrid) and dtype == "float32":
        raise SettingError("dtype", dtype, "bfloat16 or float16 with linear='hybrid'")
    source, spec, tokenizer, eos_ids = _open(path)
    params = load_params(
        source,
        spec,
        dtype=dtype,
        placement=strategy.placement,
        quantization=quantization_by_name(quantize)
        if quantize is None or isinstance(quantize, str)
        else quantize,
        pool=pool,
        progress=sys.stderr.isatty() if progress is None else progress,
    )
    return Model(
        spec=spec,
        params=params,
        linear=strategy,
        tokenizer=tokenizer,
        eos_ids=eos_ids,
        executables=executables_at(executables),
    )


def _open(path: Path) -> tuple[Source, ModelSpec, Tokenizer | None, tuple[int, ...]]:
    """Return everything of a checkpoint but its weights' values."""
    from c2c.transformer.tokenizer import tokenizer_from_folder, tokenizer_from_gguf

    if path.is_file() and path.suffix == ".gguf":
        from c2c.transformer.gguf_file import GgufCheckpoint
        from c2c.transformer.gguf_source import GgufSource

        checkpoint = GgufCheckpoint(path)
        spec = from_hf_config(checkpoint.config, path.stem)
        if "tokenizer.ggml.model" not in checkpoint.metadata:  # weights only
            return GgufSource(checkpoint), spec, None, ()
        tokenizer = tokenizer_from_gguf(checkpoint.metadata, str(path))
        return GgufSource(checkpoint), spec, tokenizer, tokenizer.eos_ids
    if not (path / "config.json").is_file():
        raise DataError(
            str(path), "no config.json: expected the folder of a checkpoint, or a GGUF file"
        )
    spec = load_spec(path)
    source = SafetensorsCheckpoint(path)
    split_experts(source, spec.family)
    if not (path / "tokenizer.json").is_file():
        return source, spec, None, _eos_ids(path)
    return source, spec, tokenizer_from_folder(path), _eos_ids(path)


def _eos_ids(folder: Path) -> tuple[int, ...]:
    """Return what ends a text: generation_config.json has the last word."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        if not file.is_file():
            continue
        try:
            found = json.loads(file.read_text("utf-8")).get("eos_token_id")
        except (ValueError, AttributeError) as error:
            raise DataError(str(file), f"not a JSON object: {error}") from error
        if found is not None:
            return tuple(found) if isinstance(found, list) else (int(found),)
    return ()
