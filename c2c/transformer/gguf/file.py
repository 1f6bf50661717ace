"""GGUF file as a Hugging Face checkpoint."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from c2c.errors import DataError
from c2c.transformer.gguf.blocks import QUANTIZED_KINDS, QuantizedTensor, unpack
from c2c.transformer.gguf.config import ROPE_FACTORS, Source, hf_config, hf_tensors
from c2c.transformer.gguf.header import TensorInfo, read_header

__all__ = ["GgufCheckpoint"]

_PLAIN: dict[GGMLQuantizationType, np.dtype[Any]] = {
    GGMLQuantizationType.F32: np.dtype(np.float32),
    GGMLQuantizationType.F16: np.dtype(np.float16),
    GGMLQuantizationType.BF16: np.dtype(ml_dtypes.bfloat16),
}
_CHUNK_WEIGHTS = 1 << 18  # values dequantised at a time, to keep temporaries small


class GgufCheckpoint:
    """A memory-mapped GGUF file.

    Attributes:
      config: as Hugging Face's config.json.
      names: Hugging Face's, in layer order.

    Raises:
      DataError: a missing or damaged file; an unsupported architecture or quantisation; unfitting
        tensors.
    """

    path: Path
    config: dict[str, Any]
    names: tuple[str, ...]
    metadata: Mapping[str, Any]

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._map = _map(self.path)
        self._bytes = np.frombuffer(self._map, np.uint8)
        header = read_header(self._map, str(self.path))
        self.metadata = header.metadata
        self._stored = header.tensors
        self._check_kinds()
        factors = self._stored.get(ROPE_FACTORS)
        self.config = hf_config(
            header, None if factors is None else self._read(factors), str(self.path)
        )
        self._sources = hf_tensors(self.config)
        self._check_tensors()
        self.names = tuple(self._sources)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading it."""
        return self._source(name).shape

    def kind(self, name: str) -> str:
        """Return a tensor's type in ggml's spelling: F32, BF16, Q4_K."""
        return self._stored[self._source(name).stored].kind.name

    def stored_bytes(self, name: str) -> int:
        """Return a tensor's bytes in the file."""
        source = self._source(name)
        info = self._stored[source.stored]
        return info.size_bytes // (info.shape[0] if source.expert is not None else 1)

    def tensor(self, name: str) -> np.ndarray:
        """Return a tensor; quantised ones as float32.

        Floats are read-only views of the file, but for Llama's reordered q and k.
        """
        source = self._source(name)
        info = self._stored[source.stored]
        rows = self._rows(source, info)
        if info.kind in _PLAIN:
            return rows.view(_PLAIN[info.kind]).reshape(source.shape)
        parts = [part for _, part in _dequantized(rows, info.kind)]
        return np.concatenate(parts).reshape(source.shape)

    def rows(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the rows of `tensor` in parts, each with its first row."""
        source = self._source(name)
        info = self._stored[source.stored]
        if info.kind in _PLAIN or len(source.shape) < 2:
            yield 0, self.tensor(name)
        else:
            yield from _dequantized(self._rows(source, info), info.kind)

    def integers(self, name: str) -> Iterator[tuple[int, QuantizedTensor]]:
        """Yield the rows of `quantized` in parts, each with its first row."""
        rows, kind = self._quantized_rows(name)
        for top, part in _parts(rows, kind):
            yield top, unpack(part, kind)

    def quantized(self, name: str) -> QuantizedTensor:
        """Return a matrix as integers, scales and minima, if any."""
        return unpack(*self._quantized_rows(name))

    def release(self) -> None:
        """Release the file's resident pages; views stay valid."""
        if hasattr(self._map, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def _source(self, name: str) -> Source:
        try:
            return self._sources[name]
        except KeyError:
            raise KeyError(f"{self.path} has no tensor {name!r}") from None

    def _quantized_rows(self, name: str) -> tuple[np.ndarray, GGMLQuantizationType]:
        source = self._source(name)
        info = self._stored[source.stored]
        if info.kind.name not in QUANTIZED_KINDS:
            raise DataError(
                f"{self.path}: {name}", f"stored as {info.kind.name}, which has no integers",
                f"Supported: {', '.join(QUANTIZED_KINDS)}; tensor() reads all kinds.",
            )  # fmt: skip
        return self._rows(source, info), info.kind

    def _read(self, info: TensorInfo) -> np.ndarray:
        raw = self._bytes[info.offset_bytes : info.offset_bytes + info.size_bytes]
        return raw.view(_PLAIN[info.kind]).reshape(info.shape)

    def _rows(self, source: Source, info: TensorInfo) -> np.ndarray:
        raw = self._bytes[info.offset_bytes : info.offset_bytes + info.size_bytes]
        if source.expert is not None:
            raw = raw.reshape(info.shape[0], -1)[source.expert]
        if not source.heads:
            return raw.reshape(source.shape[0] if len(source.shape) > 1 else 1, -1)
        rows = raw.reshape(source.heads, source.shape[0] // source.heads // 2, 2, -1)
        ordered = np.ascontiguousarray(rows.swapaxes(1, 2))
        return ordered.reshape(source.shape[0] if len(source.shape) > 1 else 1, -1)

    def _check_kinds(self) -> None:
        for kind in {info.kind for info in self._stored.values()} - set(_PLAIN):
            block_bytes = GGML_QUANT_SIZES[kind][1]
            try:
                gguf.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
            except NotImplementedError:
                name = next(n for n, info in self._stored.items() if info.kind == kind)
                raise DataError(
                    str(self.path), f"tensor {name!r} has quantisation {kind.name}, which the "
                    "gguf library cannot read",
                ) from None  # fmt: skip
        factors = self._stored.get(ROPE_FACTORS)
        if factors is not None and factors.kind not in _PLAIN:
            raise DataError(str(self.path), f"{ROPE_FACTORS} is quantised")

    def _check_tensors(self) -> None:
        shape_of: dict[str, tuple[int, ...]] = {}
        for source in self._sources.values():
            stack = () if source.expert is None else (self._experts(),)
            shape_of[source.stored] = (*stack, *source.shape)
        missing = sorted(set(shape_of) - set(self._stored))
        extra = sorted(set(self._stored) - set(shape_of) - {ROPE_FACTORS})
        family = self.config["model_type"]
        for problem, names in (("lacks", missing), ("has unexpected", extra)):
            if names:
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                raise DataError(
                    str(self.path), f"{problem} tensors for a {family} model of "
                    f"{self.config['num_hidden_layers']} layers: {', '.join(names[:5])}{more}",
                )  # fmt: skip
        for name, shape in shape_of.items():
            if self._stored[name].shape != shape:
                raise DataError(
                    str(self.path),
                    f"tensor {name!r} has shape {self._stored[name].shape}, expected {shape}",
                )

    def _experts(self) -> int:
        return int(self.config.get("num_local_experts") or self.config["num_experts"])


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror}") from error
    except ValueError:
        raise DataError(str(path), "empty, not a GGUF file", "Fetch it again.") from None


def _parts(rows: np.ndarray, kind: GGMLQuantizationType) -> Iterator[tuple[int, np.ndarray]]:
    block, block_bytes = GGML_QUANT_SIZES[kind]
    step = max(1, _CHUNK_WEIGHTS // max(1, rows.shape[1] // block_bytes * block))
    for top in range(0, len(rows), step):
        yield top, rows[top : top + step]


def _dequantized(rows: np.ndarray, kind: GGMLQuantizationType) -> Iterator[tuple[int, np.ndarray]]:
    for top, part in _parts(rows, kind):
        yield top, gguf.dequantize(part, kind)
