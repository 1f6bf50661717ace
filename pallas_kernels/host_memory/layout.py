"""Layout of a pool's file."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from pallas_kernels.host_memory.errors import PoolCorruptError, PoolError
from pallas_kernels.integer_math import round_up

MAGIC = b"PKPOOL\x00\n"
FORMAT = 2
# 0    magic, 8 bytes
# 8    length of the JSON header, uint64, little-endian
# 16   bytes of the whole file, uint64, little-endian
# 24   0, uint64
# 32   SHA-256 of the JSON header, 32 bytes
# 64   JSON header: {"format", "metadata", "tensors": {name: {"dtype", "shape", "offset"}}},
#      offsets from the start of the file
# ...  tensors, row-major, each at a multiple of 256 bytes, the first at one of 4096
PROLOGUE = struct.Struct("<8sQQQ32s")
PAGE = 4096
ALIGNMENT = 256  # TMA needs 16, jax on a CPU 64, DLPack asks for 256

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        name: np.dtype(getattr(ml_dtypes, name, name))
        for name in (
            *("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"),
            *("int8", "uint8", "int16", "uint16", "int32", "uint32"),
        )
    }
)
"""Types of one whole number of bytes that jax keeps as they are; pack int4 into uint8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Shape and type of a tensor in a pool."""

    shape: tuple[int, ...]
    dtype: str  # one of `DTYPES`

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise PoolError(f"dtype={self.dtype!r}: expected one of {', '.join(DTYPES)}")
        if any(type(s) is not int or s < 0 for s in self.shape):
            raise PoolError(f"shape={self.shape!r}: expected whole numbers of at least 0")

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Header entry of one tensor."""

    spec: TensorSpec
    offset: int  # bytes from the start of the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Metadata and entries of all tensors of a pool."""

    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]
    nbytes: int  # of the file


def plan(tensors: Mapping[str, TensorSpec], metadata: Mapping[str, str]) -> Header:
    """Lay out tensors in the order given.

    Raises:
      PoolError: a name or metadata without text, or no tensor.
    """
    if not tensors:
        raise PoolError("tensors: got none, expected at least one")
    texts: tuple[object, ...] = (*tensors, *metadata, *metadata.values())
    for name in texts:
        if not isinstance(name, str) or not name:
            raise PoolError(f"name or metadata {name!r}: expected text that is not empty")
    entries = {name: Entry(spec=spec, offset=0) for name, spec in tensors.items()}
    # Offsets are digits in the JSON: a placeholder as wide as any of them bounds the header.
    widest = {name: replace(entry, offset=1 << 62) for name, entry in entries.items()}
    top = len(_json(Header(entries=widest, metadata=dict(metadata), nbytes=0)))
    offset = round_up(PROLOGUE.size + top, PAGE)
    for name, entry in entries.items():
        entries[name] = replace(entry, offset=offset)
        offset = round_up(offset + entry.spec.nbytes, ALIGNMENT)
    return Header(entries=entries, metadata=dict(metadata), nbytes=round_up(offset, PAGE))


def encode(header: Header) -> bytes:
    """Return the first bytes of the file."""
    text = _json(header)
    digest = hashlib.sha256(text).digest()
    return PROLOGUE.pack(MAGIC, len(text), header.nbytes, 0, digest) + text


def decode(start: memoryview, file_bytes: int, path: object) -> Header:
    """Read and check the header in the first bytes of a file.

    Raises:
      PoolCorruptError: no pool, another format, truncated or inconsistent.
    """
    if len(start) < PROLOGUE.size or start[: len(MAGIC)] != MAGIC:
        raise PoolCorruptError(f"{path}: expected a pool, got other first bytes")
    _, length, nbytes, zero, digest = PROLOGUE.unpack_from(start)
    if nbytes != file_bytes:
        raise PoolCorruptError(f"{path}: has {file_bytes} bytes, expected {nbytes} by its header")
    text = bytes(start[PROLOGUE.size : PROLOGUE.size + length])
    if len(text) != length or hashlib.sha256(text).digest() != digest or zero:
        raise PoolCorruptError(f"{path}: header damaged, its SHA-256 differs from the stored one")
    try:
        header = _parse(json.loads(text), nbytes)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise PoolCorruptError(f"{path}: header invalid ({error})") from error
    end = PROLOGUE.size + length
    for name, entry in sorted(header.entries.items(), key=lambda item: item[1].offset):
        if (
            entry.offset < end
            or entry.offset % ALIGNMENT
            or entry.offset + entry.spec.nbytes > nbytes
        ):
            raise PoolCorruptError(f"{path}: tensor {name} overlaps another or leaves the file")
        end = entry.offset + entry.spec.nbytes
    return header


def _parse(values: Any, nbytes: int) -> Header:
    if values["format"] != FORMAT:
        raise ValueError(f"format {values['format']}, this version reads {FORMAT}: remove_pool it")
    entries = {}
    for name, value in values["tensors"].items():
        spec = TensorSpec(shape=tuple(value["shape"]), dtype=value["dtype"])
        entries[name] = Entry(spec=spec, offset=value["offset"])
    return Header(entries=entries, metadata=dict(values["metadata"]), nbytes=nbytes)


def _json(header: Header) -> bytes:
    values = {
        "format": FORMAT,
        "metadata": dict(header.metadata),
        "tensors": {
            name: {
                "dtype": entry.spec.dtype,
                "shape": list(entry.spec.shape),
                "offset": entry.offset,
            }
            for name, entry in header.entries.items()
        },
    }
    return json.dumps(values, separators=(",", ":")).encode()
