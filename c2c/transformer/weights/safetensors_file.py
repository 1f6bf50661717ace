"""Reader of safetensors files into the caller's memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from c2c.errors import DataError
from c2c.models import json_object, read_json_object
from c2c.transformer.weights.packed_matrices import BESIDE, Packing, packing

__all__ = ["SafetensorsCheckpoint"]

_DTYPES: Mapping[str, np.dtype[Any]] = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
}
# only with scales
_PACKED: Mapping[str, np.dtype[Any]] = {
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
}
_STORED: Mapping[str, np.dtype[Any]] = {**_DTYPES, **_PACKED}
# exponent bits, all set in infinities and NaN
_EXPONENTS = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000, "F8_E4M3": 0x7F}
_CHUNK_BYTES = 1 << 23
# beginnings of a vision-language model's tensors, of transformers 5 and 4
_TEXT = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
_NO_TEXT = tuple(
    f"{start}{part}."
    for start in ("", "model.")
    for part in ("visual", "vision_tower", "vision_model", "multi_modal_projector", "mm_projector")
)
_MAX_HEADER_BYTES = 100_000_000  # the library's own limit
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    file: int
    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    packing: Packing | None = None
    width: int = 0  # of a packed row in the file, in stored elements

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return self.shape if self.packing is None else (self.shape[0], self.width)

    @property
    def nbytes(self) -> int:
        return math.prod(self.stored_shape) * _STORED[self.dtype].itemsize


class SafetensorsCheckpoint:
    """A checkpoint folder or one file; headers are checked at once.

    Raises:
      DataError: a missing, truncated or damaged file.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        files, expected = _files(self.path)
        self._files = files
        self._tensors: dict[str, _Tensor] = {}
        for number, file in enumerate(files):
            for name, tensor in _header(file, number).items():
                if name in self._tensors:
                    first = files[self._tensors[name].file].name
                    raise DataError(str(file), f"tensor {name} is also in {first}")
                self._tensors[name] = tensor
        for name, shard in expected.items():
            entry = self._tensors.get(name)
            if entry is None or files[entry.file].name != shard:
                raise DataError(str(self.path / shard), f"tensor {name} is only in the index")
        self.names = tuple(self._tensors)

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that hold the tensors."""
        return tuple(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self._tensors[name].shape

    def divide(self, name: str, parts: Mapping[str, tuple[int, ...]]) -> None:
        """Replace a tensor by several in its memory."""
        whole = self._tensors.pop(name)
        offset = whole.offset
        for part, shape in parts.items():
            self._tensors[part] = replace(whole, shape=shape, offset=offset)
            offset += self._tensors[part].nbytes
        if offset != whole.offset + whole.nbytes:
            raise ValueError(f"{name} of {whole.nbytes} bytes: parts of {offset - whole.offset}")
        self.names = tuple(self._tensors)

    def take_text(self) -> None:
        """Give text tensors plain names; drop others."""
        tensors = {}
        for name, tensor in self._tensors.items():
            if not name.startswith(_NO_TEXT):
                start = next((start for start in _TEXT if name.startswith(start)), "")
                tensors[_TEXT.get(start, "") + name.removeprefix(start)] = tensor
        self._tensors, self.names = tensors, tuple(tensors)

    def widen(self, block: tuple[int, int] | None) -> None:
        """Apply scales on reading packed matrices, as `packed_matrices` does."""
        ends = (".weight", ".weight_packed")
        matrices = [
            name for name, t in self._tensors.items() if t.dtype in _PACKED and name.endswith(ends)
        ]
        if block is not None:
            for name in matrices:
                self._pack(name, block)
            for name in [n for n in self._tensors if n.rpartition(".")[2] in BESIDE]:
                del self._tensors[name]
        for name, tensor in self._tensors.items():
            if tensor.packing is None and tensor.dtype in _PACKED:
                file, wide = str(self._files[tensor.file]), ", ".join(_DTYPES)
                raise DataError(file, f"{name} is of type {tensor.dtype}, expected {wide}")
        self.names = tuple(self._tensors)

    def _pack(self, name: str, block: tuple[int, int]) -> None:
        tensor, start = self._tensors[name], name.rpartition(".")[0]
        beside = {s: f"{start}.{s}" for s in BESIDE if f"{start}.{s}" in self._tensors}

        def read(suffix: str) -> np.ndarray:
            into = np.empty(self.shape(beside[suffix]), np.float32)
            self.read(beside[suffix], into)
            return into

        shapes = {suffix: self.shape(other) for suffix, other in beside.items()}
        outcome = packing(tensor.dtype, tensor.shape, block, shapes, read)
        if isinstance(outcome, str):
            scales = [n for s, n in beside.items() if s.startswith("weight_scale")]
            has = ", ".join(
                f"{self._tensors[n].dtype} {list(self.shape(n))}" for n in scales
            ) or "none"  # fmt: skip
            file = str(self._files[tensor.file])
            raise DataError(file, f"{name} has scales {has}, expected {outcome}")
        form, shape = outcome
        del self._tensors[name]
        self._tensors[f"{start}.weight"] = replace(
            tensor, packing=form, shape=shape, width=tensor.shape[1]
        )

    def stored_bytes(self, name: str) -> int:
        """Return a tensor's bytes in its file."""
        return self._tensors[name].nbytes

    def read(self, name: str, into: np.ndarray) -> None:
        """Read a tensor into `into`, converted."""
        tensor = self._tensors[name]
        if into.shape != tensor.shape:
            raise ValueError(f"into of shape {into.shape}: expected {tensor.shape} for {name}")
        target = into.reshape(1) if into.ndim == 0 else into
        same = tensor.packing is None and into.dtype == _STORED[tensor.dtype]
        direct = same and into.flags.c_contiguous
        for first, chunk in self.rows(name, target if direct else None):
            if not direct:
                np.copyto(target[first : first + len(chunk)], chunk, casting="unsafe")

    def rows(self, name: str, into: np.ndarray | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """Yield a tensor as stored (packed: float32) in parts, each with its first row."""
        tensor = self._tensors[name]
        file, kind = self._files[tensor.file], _STORED[tensor.dtype]
        count, *tail = tensor.stored_shape or (1,)
        row_bytes = max(1, tensor.nbytes // max(1, count))
        step = max(1, _CHUNK_BYTES // row_bytes)
        with file.open("rb", buffering=0) as handle:
            for first in range(0, count, step):
                last = min(first + step, count)
                chunk = np.empty((last - first, *tail), kind) if into is None else into[first:last]
                view = memoryview(chunk.reshape(-1).view(np.uint8))
                _fill(handle.fileno(), view, tensor.offset + first * row_bytes, file, name)
                _check_finite(chunk, tensor.dtype, file, name)
                form = tensor.packing
                yield first, chunk if form is None else form.widen(chunk, first)

    def are_equal(self, name: str, other: str) -> bool:
        """Return whether two tensors exist with equal type and bits."""
        tensors = [self._tensors[tensor] for tensor in (name, other) if tensor in self._tensors]
        if len({(tensor.dtype, tensor.shape) for tensor in tensors}) != 1 or len(tensors) != 2:
            return False
        pairs = zip(self.rows(name), self.rows(other), strict=True)
        return all(a.tobytes() == b.tobytes() for (_, a), (_, b) in pairs)

    def stored(self, name: str) -> None:
        """Return None: tensors are floats."""


def _files(path: Path) -> tuple[list[Path], Mapping[str, str]]:
    if path.is_file():
        return [path], {}
    if (path / _INDEX).is_file():
        weight_map = read_json_object(path / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not all(
            isinstance(v, str) and v == Path(v).name for v in weight_map.values()
        ):
            raise DataError(str(path / _INDEX), "expected weight_map from tensors to file names")
        files = [path / name for name in sorted(set(weight_map.values()))]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            shown = ", ".join(missing[:3])
            raise DataError(str(path), f"missing {shown}{more}, which {_INDEX} names")
        return files, weight_map
    if (path / _SINGLE).is_file():
        return [path / _SINGLE], {}
    raise DataError(
        str(path), f"no {_SINGLE} and no {_INDEX}", "Only safetensors (and GGUF files) are read."
    )


def _header(file: Path, number: int) -> dict[str, _Tensor]:
    try:
        return _read_header(file, number)
    except OSError as error:
        raise DataError(str(file), f"cannot be read: {error.strerror or error}") from None


def _read_header(file: Path, number: int) -> dict[str, _Tensor]:
    size = file.stat().st_size
    with file.open("rb") as handle:
        start = handle.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise DataError(
                str(file), f"{size} bytes cannot hold its header of {length}: truncated, or not "
                "safetensors",
            )  # fmt: skip
        header = json_object(handle.read(length), str(file), is_unique=True)
    header.pop("__metadata__", None)
    begin = 8 + length
    tensors, spans = {}, []
    for name, entry in header.items():
        tensor = _entry(file, number, name, entry, begin)
        tensors[name] = tensor
        spans.append((tensor.offset, tensor.offset + tensor.nbytes, name))
    offset = begin
    for first, last, name in sorted(spans):
        if first != offset:
            raise DataError(str(file), f"{name} begins at byte {first}, expected {offset}: damaged")
        offset = last
    if offset != size:
        fault = "truncated" if size < offset else "more than its tensors"
        raise DataError(str(file), f"{size} bytes, expected {offset}: {fault}")
    return tensors


def _entry(file: Path, number: int, name: str, entry: Any, begin: int) -> _Tensor:
    try:
        kind, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
        whole = [first, last, *shape]
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(str(file), f"the entry of {name} is damaged: {error!r}") from error
    if any(type(value) is not int or value < 0 for value in whole):
        raise DataError(str(file), f"{name} has sizes {whole}, expected whole numbers from 0")
    if kind not in _STORED:
        raise DataError(str(file), f"{name} is of type {kind}, expected {', '.join(_DTYPES)}")
    tensor = _Tensor(file=number, dtype=kind, shape=tuple(shape), offset=begin + first)
    if last - first != tensor.nbytes:
        raise DataError(
            str(file), f"{name} has {last - first} bytes, expected {tensor.nbytes} of {kind}{shape}"
        )
    return tensor


def _fill(descriptor: int, view: memoryview, offset: int, file: Path, name: str) -> None:
    done = 0
    while done < len(view):
        try:
            count = os.preadv(descriptor, [view[done:]], offset + done)
        except OSError as error:
            raise DataError(str(file), f"{name} cannot be read: {error}") from error
        if not count:
            raise DataError(str(file), f"ends inside {name}: truncated")
        done += count


def _check_finite(values: np.ndarray, dtype: str, file: Path, name: str) -> None:
    if dtype not in _EXPONENTS:
        return
    mask = _EXPONENTS[dtype]
    kind = {"F32": np.uint32, "F8_E4M3": np.uint8}.get(dtype, np.uint16)
    bits: Any = values.reshape(-1).view(kind)
    if bits.size and np.max(bits & bits.dtype.type(mask)) == mask:
        raise DataError(str(file), f"{name} holds NaN or infinity: corrupt")
