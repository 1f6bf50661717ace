"""Attacks by traces and checkpoints: what is written, and what reading it says."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.attacks.table import Attack
from tests.transformer.random_checkpoints import config_of, tensors_of, write

__all__ = ["CHECKPOINTS", "TRACES"]

_HEADER = b"arrival_s,model,prompt_tokens,output_tokens\n"
_RECORD = b'{"arrival_s": 1, "model": "a", "prompt_tokens": %s, "output_tokens": 1}\n'
_MB = 1 << 20


def _packed(head: bytes, piece: bytes, pieces: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with gzip.open(path, "wb", 1) as file:
            file.write(head)
            for _ in range(pieces):
                file.write(piece)

    return make


def _zstd(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as raw, pa.CompressedOutputStream(raw, "zstd") as file:
        file.write(_HEADER)
        for _ in range(400):
            file.write(b"0" * _MB)


def _plain(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b'{"a": 1')
        file.truncate(1 << 30)


def _parquet(harm: Callable[[bytearray], Any]) -> Callable[[Path], None]:
    """Write a small Parquet file whose bytes were changed."""

    def make(path: Path) -> None:
        names = ("arrival_s", "prompt_tokens", "output_tokens")
        pq.write_table(pa.table(dict.fromkeys(names, np.arange(1.0, 10.0))), path)
        raw = bytearray(path.read_bytes())
        harm(raw)
        path.write_bytes(raw)

    return make


def _footer_of_2gb(raw: bytearray) -> None:
    raw[-8:-4] = (2**31 - 1).to_bytes(4, "little")


def _billion_rows(raw: bytearray) -> None:
    """Have the footer say 2^31 rows where it says 9 (18 as Thrift writes it)."""
    end = len(raw) - 8
    begin = end - int.from_bytes(raw[-8:-4], "little")
    found = raw.index(b"\x16\x12", begin)  # a 64-bit field of 9
    raw[found : found + 2] = b"\x16\xfe\xff\xff\xff\x0f"  # as Thrift writes 2^31 - 1
    raw[-8:-4] = (end + 4 - begin).to_bytes(4, "little")


_TRACES: tuple[tuple[str, Callable[[Path], Any], str], ...] = (
    ("400 MB of one row, gzip of 2 MB", _packed(_HEADER, b"0" * _MB, 400),
     "there are more than 67108864 bytes in the row that begins with '000..."),
    ("400 MB of one row, zstd of 13 kB", _zstd,
     "there are more than 67108864 bytes in the row that begins with '000..."),
    ("a quote that 400 MB do not close", _packed(_HEADER + b'0,"', b"a" * _MB, 400),
     "there are more than 67108864 bytes in the row that begins with '0,\"aaa..."),
    ("a header of 400 MB", _packed(b"", b"a" * _MB, 400),
     "its header is longer than 67108864 bytes"),
    ("a million columns", _plain(b"a," * 1_000_000 + b"a\n"),
     "its header has 1000000 commas, at most 10000 fit"),
    ("a record of 400 MB in JSON lines", _packed(b'{"a": "', b"a" * _MB, 400),
     "the record that begins with '{\"a\": \"aaa...' has 134217728 characters or more"),
    ("a record of 400 MB after another", _packed(_RECORD % b"1" + b'{"a": "', b"a" * _MB, 400),
     "the record that begins with '{\"a\": \"aaa...' has 134217728 characters or more"),
    ("a list of 400 MB in one line", _packed(b"[", b"[[1,1],1], " * 90_000, 400),
     "a record is list, not an object"),
    ("1 GB of holes after the first bytes", _sparse,
     "the record that begins with '{\"a\": 1\\x00...' has 134217728 characters or more"),
    ("a million lists in one another", _plain(b"[" * 1_000_000),
     "JSON that cannot be read: maximum recursion depth exceeded while decoding a JSON array from "
     "a unicode string"),
    ("a number of 10,000 digits", _plain(_RECORD % (b"9" * 10_000)),
     "JSON that cannot be read: Exceeds the limit (4300 digits) for integer string conversion: "
     "value has 10000 digits; use sys.set_int_max_str_digits() to increase the limit"),
    ("NaN, negative and infinite times", _plain(b"".join(
        _RECORD.replace(b": 1,", b": %s," % at, 1) % b"1" for at in (b"NaN", b"-1", b"1e999"))),
     "no usable request in 3 rows: nan_arrival 1 (rows 1); infinite_arrival 1 (rows 3); "
     "negative_arrival 1 (rows 2)"),
    ("a Parquet footer that says 2 GB", _parquet(_footer_of_2gb),
     "cannot be read: Parquet file size is ... bytes, smaller than the size reported by footer's "
     "(2147483647bytes)"),
    ("a Parquet footer that says 2^31 rows", _parquet(_billion_rows), "read: 9 requests"),
    ("a link in a circle", lambda path: path.symlink_to(path),
     "expected an existing Parquet, CSV, JSON or log file"),
    ("a pipe nobody writes to", os.mkfifo,
     "expected an existing Parquet, CSV, JSON or log file"),
    ("a link to /dev/zero", lambda path: path.symlink_to("/dev/zero"),
     "expected an existing Parquet, CSV, JSON or log file"),
)  # fmt: skip
TRACES = tuple(Attack(name=name, make=make, back=back) for name, make, back in _TRACES)
"""`make` writes a file; `back` is what follows its name in the error."""

_CONFIG = config_of("llama")
_NORM = "model.norm.weight"
_NO_INDEX = "model.safetensors.index.json: expected weight_map from tensors to file names."


def _checkpoint(
    harm: Callable[[dict[str, Any], bytes], bytes] | None = None, **config: Any
) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        write(folder, _CONFIG | config, tensors_of(_CONFIG))
        path = folder / "model.safetensors"
        raw = path.read_bytes()
        begin = 8 + int.from_bytes(raw[:8], "little")
        if harm is not None:
            path.write_bytes(harm(json.loads(raw[8:begin]), raw[begin:]))

    return make


def _file(head: Any, data: bytes, length: int | None = None) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def _entry(**changed: Any) -> Callable[[Path], None]:
    return _checkpoint(lambda head, data: _file(head | {_NORM: head[_NORM] | changed}, data))


def _overlapping(head: dict[str, Any], data: bytes) -> bytes:
    first, second = [name for name in head if "layernorm" in name][:2]
    return _file(head | {second: head[first]}, data)


def _twice(head: dict[str, Any], data: bytes) -> bytes:
    again = f', "{_NORM}": {json.dumps(head[_NORM])}}}'
    return _file(json.dumps(head)[:-1].encode() + again.encode(), data)


def _indexed(*files: str) -> Callable[[Path], None]:
    """Write an index that names these files."""

    def make(folder: Path) -> None:
        _checkpoint()(folder)
        (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
        named = {f"t{number}": file for number, file in enumerate(files)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))

    return make


def _linked(to: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        _checkpoint()(folder)
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").symlink_to(to)

    return make


def _checkpoints() -> Iterator[tuple[str, Callable[[Path], Any], str]]:
    yield (
        "a header of 2^63 bytes", _checkpoint(lambda head, data: _file(head, data, 2**63)),
        "model.safetensors: ... bytes cannot hold its header of 9223372036854775808: truncated, or "
        "not safetensors.",
    )  # fmt: skip
    yield (
        "a header of 50,000 objects in one another",
        _checkpoint(lambda *_: _file(b'{"a":' * 50_000 + b"1" + b"}" * 50_000, b"")),
        "model.safetensors: not readable as JSON: nested too deeply.",
    )
    yield (
        "a tensor that ends at 2^62", _entry(data_offsets=[0, 2**62]),
        f"model.safetensors: {_NORM} has 4611686018427387904 bytes, expected 128 of F32[32].",
    )  # fmt: skip
    yield (
        "a negative shape", _entry(shape=[-32]),
        f"model.safetensors: {_NORM} has sizes [..., -32], expected whole numbers from 0.",
    )  # fmt: skip
    yield (
        "a shape of 2^80 values", _entry(shape=[2**40, 2**40]),
        f"model.safetensors: {_NORM} has 128 bytes, expected {4 << 80} of F32[...].",
    )  # fmt: skip
    yield (
        "tensors that overlap", _checkpoint(_overlapping),
        "model.safetensors: model.layers.0.post_attention_layernorm.weight begins at byte ..., "
        "expected ...: damaged.",
    )  # fmt: skip
    yield (
        "a tensor twice", _checkpoint(_twice),
        f"model.safetensors: {_NORM} appears twice.",
    )  # fmt: skip
    yield (
        "10^9 layers", _checkpoint(num_hidden_layers=10**9),
        "config.json: model.attacked.num_hidden_layers=1000000000: expected at most 4096.",
    )  # fmt: skip
    yield (
        "-1 layers", _checkpoint(num_hidden_layers=-1),
        "config.json: model.attacked.num_hidden_layers=-1: expected a whole number, at least 1.",
    )  # fmt: skip
    yield (
        "2^62 values a token", _checkpoint(hidden_size=2**62),
        "shapes that differ from the config's: ...",
    )  # fmt: skip
    yield "an index that leads to ../", _indexed("../outside.safetensors"), _NO_INDEX
    yield "an index that leads to /etc/passwd", _indexed("/etc/passwd"), _NO_INDEX
    yield (
        "an index of 100,000 files", _indexed(*(f"f{k}" for k in range(100_000))),
        "missing f0, f1, f10 and 99997 more, which model.safetensors.index.json names.",
    )  # fmt: skip
    yield (
        "a link to a text", _linked("/etc/passwd"),
        "model.safetensors: ... bytes cannot hold its header of ...: truncated, or not "
        "safetensors.",
    )  # fmt: skip
    yield (
        "a link to /dev/zero", _linked("/dev/zero"),
        "no model.safetensors and no model.safetensors.index.json. Only safetensors (and GGUF "
        "files) are read.",
    )  # fmt: skip


CHECKPOINTS = tuple(Attack(name=name, make=make, back=back) for name, make, back in _checkpoints())
"""`make` writes a folder; `back` is what follows its name in the error."""
