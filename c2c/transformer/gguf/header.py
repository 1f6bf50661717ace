"""GGUF header, checked against the file's size."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, overload

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType

from c2c.errors import DataError

__all__ = ["GgufHeader", "TensorInfo", "Texts", "read_header"]

_VERSIONS = (2, 3)
_NUMBERS = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}
_LENGTH = struct.Struct("<Q")
_MAX_DIMENSIONS = 4
_MAX_NESTING = 4
_MAX_ITEMS = 1 << 24  # limit for all arrays together; the largest vocabularies have a few million
_MAX_TEXT_BYTES = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Stored tensor; `shape` is row-major (reversed in the file)."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset_bytes: int  # from the start of the file
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """Part of a GGUF file before the weights."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]


def read_header(data: mmap.mmap, source: str) -> GgufHeader:
    """Read and validate a GGUF header."""
    if data[:4] != b"GGUF":
        raise DataError(source, "not a GGUF file: it does not begin with 'GGUF'")
    cursor = _Cursor(data, source)
    version = cursor.number("<I", "the version")
    if version and not version & 0xFFFF:
        raise DataError(source, "a big-endian GGUF file, which is not supported")
    if version not in _VERSIONS:
        raise DataError(source, f"GGUF version {version}; versions 2 and 3 are supported")
    tensor_count = cursor.count("the number of tensors")
    key_count = cursor.count("the number of metadata keys")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.text("a metadata key")
        if key in metadata:
            raise DataError(source, f"damaged: metadata key {key!r} appears twice")
        metadata[key] = cursor.value(cursor.value_type(key), key)
    infos = [_tensor_info(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise DataError(source, f"damaged: general.alignment is {alignment!r}, not a power of two")
    start = -(-cursor.position // alignment) * alignment
    tensors = {
        name: _placed(name, kind, shape, start + offset, len(data), source)
        for name, kind, shape, offset in infos
    }
    if len(tensors) != tensor_count:
        raise DataError(source, "damaged: two tensors have the same name")
    return GgufHeader(metadata=metadata, tensors=tensors)


class Texts(Sequence[str]):
    """Texts of a file, read on first use.

    Raises:
      DataError: on first use, not UTF-8.
    """

    def __init__(self, data: mmap.mmap, position: int, count: int, source: str, part: str) -> None:
        self._data, self._position, self._count = data, position, count
        self._source, self._part = source, part

    @cached_property
    def all(self) -> list[str]:
        """Return the texts as one list."""
        data, end, length = self._data, self._position, _LENGTH.unpack_from
        result = []
        try:
            for _ in range(self._count):
                begin = end + 8
                end = begin + length(data, end)[0]
                result.append(data[begin:end].decode())
        except UnicodeDecodeError:
            raise DataError(self._source, f"damaged: {self._part} is not UTF-8 text") from None
        return result

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self.all[index]

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.all == list(other)

    __hash__ = None  # type: ignore[assignment]


class _Cursor:
    def __init__(self, data: mmap.mmap, source: str) -> None:
        self.data = data
        self.source = source
        self.position = 4  # after the magic
        self.items = 0  # total items of arrays so far

    def advance(self, size: int, part: str) -> int:
        start = self.position
        if size > len(self.data) - start:
            raise DataError(
                self.source, f"truncated or damaged: the file ends inside {part}", "Fetch it again."
            )
        self.position = start + size
        return start

    def number(self, code: str, part: str) -> int:
        value = struct.unpack_from(code, self.data, self.advance(struct.calcsize(code), part))[0]
        return int(value)

    def count(self, part: str) -> int:
        count = self.number("<Q", part)
        if count > len(self.data) - self.position:
            raise DataError(
                self.source, f"truncated or damaged: {part} is {count}", "Fetch it again."
            )
        return count

    def text(self, part: str) -> str:
        size = self.number("<Q", part)
        if size > _MAX_TEXT_BYTES:
            raise DataError(self.source, f"damaged: {part} is a text of {size} bytes")
        start = self.advance(size, part)
        try:
            return self.data[start : start + size].decode()
        except UnicodeDecodeError:
            raise DataError(self.source, f"damaged: {part} is not UTF-8 text") from None

    def texts(self, count: int, part: str) -> Texts:
        begin = position = self.position
        data, last, length = self.data, len(self.data) - 8, _LENGTH.unpack_from
        for _ in range(count):
            if position > last:
                position = len(data) + 1  # which `advance` refuses
                break
            (size,) = length(data, position)
            if size > _MAX_TEXT_BYTES:
                raise DataError(self.source, f"damaged: {part} has a text of {size} bytes")
            position += 8 + size
        self.advance(position - begin, part)
        return Texts(data, begin, count, self.source, part)

    def value_type(self, key: str) -> GGUFValueType:
        number = self.number("<I", f"metadata key {key!r}")
        try:
            return GGUFValueType(number)
        except ValueError:
            raise DataError(
                self.source, f"damaged: metadata key {key!r} has type {number}, which is unknown"
            ) from None

    def value(self, kind: GGUFValueType, key: str, nesting: int = 0) -> Any:
        label = f"metadata key {key!r}"
        if kind == GGUFValueType.STRING:
            return self.text(label)
        if kind != GGUFValueType.ARRAY:
            return self._numbers(kind, 1, label)[0]
        if nesting == _MAX_NESTING:
            raise DataError(self.source, f"damaged: {label} nests arrays too deeply")
        item = self.value_type(key)
        count = self.count(f"the length of {label}")
        self.items += count
        if self.items > _MAX_ITEMS:
            raise DataError(
                self.source,
                f"damaged: {label} is an array of {count}, expected at most {_MAX_ITEMS}",
            )
        if item == GGUFValueType.STRING:
            return self.texts(count, label)
        if item == GGUFValueType.ARRAY:
            return [self.value(item, key, nesting + 1) for _ in range(count)]
        return self._numbers(item, count, label)

    def _numbers(self, kind: GGUFValueType, count: int, part: str) -> list[Any]:
        dtype = np.dtype(_NUMBERS[kind])
        start = self.advance(dtype.itemsize * count, part)
        numbers: list[Any] = np.frombuffer(
            self.data[start : start + dtype.itemsize * count], dtype
        ).tolist()
        return numbers


def _tensor_info(cursor: _Cursor) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int]:
    name = cursor.text("the name of a tensor")
    label = f"the description of tensor {name!r}"
    dimensions = cursor.number("<I", label)
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise DataError(cursor.source, f"damaged: tensor {name!r} has {dimensions} dimensions")
    shape = tuple(cursor.number("<Q", label) for _ in range(dimensions))[::-1]
    number = cursor.number("<I", label)
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise DataError(
            cursor.source, f"tensor {name!r} has quantisation {number}, which is unknown",
            "The file is damaged or newer than the gguf library.",
        ) from None  # fmt: skip
    return name, kind, shape, cursor.number("<Q", label)


def _placed(
    name: str,
    kind: GGMLQuantizationType,
    shape: tuple[int, ...],
    offset: int,
    end: int,
    source: str,
) -> TensorInfo:
    if kind not in GGML_QUANT_SIZES:
        raise DataError(source, f"tensor {name!r} has quantisation {kind.name}, no longer in use")
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if not prod(shape) or shape[-1] % block:
        raise DataError(
            source, f"damaged: tensor {name!r} of shape {shape} cannot be {kind.name} "
            f"(blocks of {block})",
        )  # fmt: skip
    size = prod(shape) // block * block_bytes
    if offset + size > end:
        raise DataError(
            source, f"truncated: tensor {name!r} ends at byte {offset + size}, the file at {end}",
            "Fetch it again.",
        )  # fmt: skip
    return TensorInfo(name=name, kind=kind, shape=shape, offset_bytes=offset, size_bytes=size)
