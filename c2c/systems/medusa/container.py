"""Container files of JSON values and bytes."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from c2c.atomic import atomic_file
from c2c.errors import DataError

__all__ = ["VERSION", "parts_of", "read_container", "write_container"]

VERSION: Final = 4
_MAGIC: Final = b"c2c-graphs"
_HEAD: Final = struct.Struct("<10sHQ32s")  # magic, version, bytes inside, their SHA-256


def write_container(path: Path, values: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
    """Write JSON values and named bytes to a file, atomically."""
    sizes = {name: len(data) for name, data in blobs.items()}
    text = json.dumps({"values": values, "blobs": sizes}, allow_nan=False).encode()
    inside = b"".join([struct.pack("<Q", len(text)), text, *blobs.values()])
    head = _HEAD.pack(_MAGIC, VERSION, len(inside), hashlib.sha256(inside).digest())
    packed = pa.Codec("zstd", compression_level=3).compress(inside, asbytes=True)
    with atomic_file(path) as file:
        file.write(head + packed)


def read_container(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the values and bytes of `write_container`."""
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise DataError(str(path), f"cannot be read ({problem.strerror})") from problem
    if len(data) < _HEAD.size or data[:10] != _MAGIC:
        raise DataError(str(path), "magic: not a file of materialised graphs, or cut")
    _, version, nbytes, digest = _HEAD.unpack_from(data)
    if version != VERSION:
        raise DataError(str(path), f"version: {version}, this code reads {VERSION}")
    try:
        inside = pa.Codec("zstd").decompress(data[_HEAD.size :], nbytes, asbytes=True)
    except (pa.ArrowException, OSError, MemoryError, OverflowError) as problem:
        raise DataError(str(path), "content: cut or changed") from problem
    if hashlib.sha256(inside).digest() != digest:
        raise DataError(str(path), "content: cut or changed")
    try:
        (length,) = struct.unpack_from("<Q", inside)
        head = json.loads(inside[8 : 8 + length])
        return head["values"], parts_of(head["blobs"], inside[8 + length :])
    except (struct.error, ValueError, LookupError, TypeError, AttributeError) as problem:
        raise DataError(str(path), f"content: not as expected ({problem})") from problem


def parts_of(sizes: Mapping[str, int], data: bytes) -> dict[str, bytes]:
    """Split concatenated bytes into named parts of given sizes."""
    result, offset = {}, 0
    for name, size in sizes.items():
        result[name] = data[offset : offset + size]
        offset += size
    return result
