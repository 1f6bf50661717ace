"""Loader of checkpoints: Hugging Face's folders, GGUF files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from c2c.errors import DataError, SettingError
from c2c.hardware import memory_bytes
from c2c.models import ModelSpec, from_hf_config, name_of, param_count, read_config
from c2c.transformer.executables import Executables, executables_at
from c2c.transformer.layers.layout import EMBEDDING, FAMILIES, HEAD, check_supported
from c2c.transformer.layers.linear import Hybrid, Linear, linear_by_name
from c2c.transformer.model import Model
from c2c.transformer.running.generate import Wanted, warm
from c2c.transformer.weights.adapter import CONFIG, LowRank, low_rank
from c2c.transformer.weights.checkpoint import expected_params, load_params
from c2c.transformer.weights.formats import Quantization, Quantize, quantization_by_name
from c2c.transformer.weights.fused_experts import split_experts
from c2c.transformer.weights.integer_groups import GroupedCheckpoint, check_packing
from c2c.transformer.weights.leaves import Source
from c2c.transformer.weights.packed_matrices import IS_READ, is_read
from c2c.transformer.weights.safetensors_file import SafetensorsCheckpoint

if TYPE_CHECKING:  # a model that is not loaded from a file needs neither tokenizers nor gguf
    from c2c.transformer.text.tokenizer import Tokenizer

__all__ = ["Ahead", "Described", "describe", "load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A checkpoint without the values of its weights."""

    spec: ModelSpec
    source: Source
    tokenizer: Tokenizer | None  # None if the checkpoint has none
    eos_ids: tuple[int, ...]
    adapter: LowRank | None = None


Part = Literal["weights", "tokenizer", "executables"]

# What will be run, told from the model and its tokenizer; see `load`.
type Ahead = Callable[[ModelSpec, Tokenizer | None], Wanted]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    spec: ModelSpec
    source: Source
    texts: Callable[[], tuple[Tokenizer | None, tuple[int, ...]]]
    adapter: LowRank | None = None


def load(
    path: Path | str,
    dtype: str = "auto",
    *,
    linear: str | Linear = "reference",
    quantize: Quantize | Quantization | None = None,
    pool: Path | str | None = None,
    progress: bool | None = None,
    executables: Executables | Literal["auto"] | Path | str | None = "auto",
    ahead: Ahead | None = None,
    took: Callable[[Part, float], None] = lambda *_: None,
    device: Any = None,
) -> Model:
    """Load a checkpoint: a folder in Hugging Face's layout, a GGUF file, or PEFT's LoRA folder.

    Args:
      path: folder (config.json, safetensors, tokenizer.json), GGUF file, or adapter's folder
        (adapter_config.json, adapter_model.safetensors) beside its base's.
      dtype: of parameters, cache and activations: "float32", "bfloat16", "float16"; "auto": float32
        on a CPU with room for it, else bfloat16.
      linear: "reference" (weights in device memory), "hybrid" (in host memory, read by our kernels;
        two-byte types), "staged" (in host memory, copied), or a strategy.
      quantize: "int8", "fp8", "int4", or "stored", a GGUF file's integers; see `Quantization`.
      pool: file for shared host weights; see `load_params`.
      progress: by default if stderr is a terminal.
      executables: folder; "auto": the default of `pallas_kernels.repository`, if writable.
      ahead: executables to prepare during loading.
      took: callback with each part's seconds, in any thread.
      device: jax device; by default the first.

    Raises:
      SettingError: an unsupported setting or architecture.
      DataError: missing or damaged files, or unfitting tensors.
    """
    path = Path(path)
    strategy = linear_by_name(linear) if isinstance(linear, str) else linear
    if isinstance(strategy, Hybrid) and dtype == "float32":
        raise SettingError("dtype", dtype, "bfloat16 or float16 with linear='hybrid'")
    checkpoint = _open(path)
    spec = checkpoint.spec
    if dtype == "auto":
        dtype = _fastest(spec, strategy)
    if quantize is None or isinstance(quantize, str):
        quantize = quantization_by_name(quantize)
    store = executables_at(executables)
    if store is not None and device is not None:
        store = store.on(device)
    options: dict[str, Any] = {
        "dtype": dtype, "placement": strategy.placement, "quantization": quantize,
    }  # fmt: skip

    def beside() -> tuple[Tokenizer | None, tuple[int, ...]]:
        with _timed("tokenizer", took):
            tokenizer, eos = _told(path, checkpoint.texts)
        if ahead is not None and store is not None:
            with _timed("executables", took):
                params = expected_params(checkpoint.source, spec, **options, device=device)
                if checkpoint.adapter is not None:
                    params = checkpoint.adapter.expected(params, spec)
                warm(params, spec, strategy, store, ahead(spec, tokenizer))
        return tokenizer, eos

    with ThreadPoolExecutor(1, "beside-weights") as others:
        ready = others.submit(beside)
        with _timed("weights", took):
            params = load_params(
                checkpoint.source,
                spec,
                **options,
                pool=pool,
                progress=sys.stderr.isatty() if progress is None else progress,
                between=lambda: _raise_early(ready),
                device=device,
            )
            if checkpoint.adapter is not None:
                params = checkpoint.adapter.adapted(params, spec)
        tokenizer, eos = ready.result()
    return Model(
        spec=spec,
        params=params,
        linear=strategy,
        tokenizer=tokenizer,
        eos_ids=eos,
        executables=store,
    )


@contextmanager
def _timed(part: Part, took: Callable[[Part, float], None]) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    took(part, time.perf_counter() - begin)


def _raise_early(ready: Future[Any]) -> None:
    if ready.done() and (error := ready.exception()) is not None:
        raise error


def _fastest(spec: ModelSpec, linear: Linear) -> str:
    import jax

    on_cpu = jax.default_backend() == "cpu" and not isinstance(linear, Hybrid)
    return "float32" if on_cpu and 4 * param_count(spec) <= memory_bytes() / 2 else "bfloat16"


def describe(path: Path | str) -> Described:
    """Return a checkpoint without weights' values.

    Raises:
      DataError: missing or damaged files, or an unsupported model.
    """
    path = Path(path)
    checkpoint = _open(path)
    tokenizer, eos = _told(path, checkpoint.texts)
    return Described(
        spec=checkpoint.spec, source=checkpoint.source, tokenizer=tokenizer, eos_ids=eos,
        adapter=checkpoint.adapter,
    )  # fmt: skip


def _told[T](path: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except OSError as error:
        name = error.filename or path
        raise DataError(str(name), f"cannot be read: {error.strerror or error}") from None


def _open(path: Path) -> _Opened:
    def opened() -> _Opened:
        if path.is_file() and path.suffix == ".gguf":
            return _open_gguf(path)
        if (path / CONFIG).is_file():
            adapter = low_rank(path)
            return replace(_open(adapter.base), adapter=adapter)
        config = path / "config.json"
        if not config.is_file():
            raise DataError(
                str(path), "no config.json: expected the folder of a checkpoint, or a GGUF file"
            )
        return _open_folder(path, config)

    return _told(path, opened)


def _open_gguf(path: Path) -> _Opened:
    from c2c.transformer.gguf.file import GgufCheckpoint
    from c2c.transformer.gguf.source import GgufSource

    checkpoint = GgufCheckpoint(path)

    def texts() -> tuple[Tokenizer | None, tuple[int, ...]]:
        from c2c.transformer.text.tokenizer import tokenizer_from_gguf

        if "tokenizer.ggml.model" not in checkpoint.metadata:  # weights only
            return None, ()
        tokenizer = tokenizer_from_gguf(checkpoint.metadata, str(path))
        return tokenizer, tokenizer.eos_ids

    spec = _spec(checkpoint.config, path.stem, path)
    return _Opened(spec=spec, source=GgufSource(checkpoint), texts=texts)


def _open_folder(path: Path, config: Path) -> _Opened:
    read = read_config(config)
    spec = _spec(read, name_of(path), config)
    form = spec.weights
    if form is not None and form.kind in ("awq", "gptq"):
        check_packing(read, config)
        source: SafetensorsCheckpoint = GroupedCheckpoint(path, form)
    else:
        source = SafetensorsCheckpoint(path)
        source.take_text()
        source.widen(None if form is None else form.block)
    spec = replace(spec, weights=None, kv_dtype_bytes=0)  # widened on reading
    split_experts(source, spec.family)
    if spec.tie_embeddings and HEAD in source.names and not source.are_equal(HEAD, EMBEDDING):
        # Transformers 5 also computes with the head if the file has one with its own values.
        spec = replace(spec, tie_embeddings=False)

    def texts() -> tuple[Tokenizer | None, tuple[int, ...]]:
        from c2c.transformer.text.eos import eos_ids
        from c2c.transformer.text.tokenizer import tokenizer_from_folder

        if not (path / "tokenizer.json").is_file():
            return None, eos_ids(path)
        tokenizer = tokenizer_from_folder(path)
        return tokenizer, tokenizer.eos_ids

    return _Opened(spec=spec, source=source, texts=texts)


def _spec(config: Mapping[str, Any], name: str, file: Path) -> ModelSpec:
    try:
        spec = from_hf_config(config, name, families=FAMILIES)
        check_supported(spec)
        form = spec.weights
        if form is not None and not is_read(form):
            raise SettingError(
                f"model.{name}.quantization_config.quant_method", form.kind, IS_READ,
                "For other weights load the unquantised checkpoint with quantize='int4', or "
                "a GGUF file.",
            )  # fmt: skip
    except SettingError as error:
        raise DataError(str(file), str(error).rstrip(".")) from None
    return spec
