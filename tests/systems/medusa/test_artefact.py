"""The file: what is written is read, and what is cut, changed or of another key is not used."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from c2c.errors import DataError
from c2c.systems.medusa import (
    Graph,
    Node,
    artefact_path,
    count_nodes,
    load_artefact,
    read_artefact,
    write_artefact,
)
from c2c.systems.medusa.container import VERSION
from c2c.systems.medusa.ir import Told
from c2c.systems.program import Edge
from pallas_kernels.repository import RepositoryWarning
from tests.systems.medusa.cases import made


def nested() -> Graph:
    inner = Graph(4, (Node("empty"), Node("fill", parameters=(bytes(8),) * 4)), (Edge(0, 1),))
    return Graph(4, (Node("child", child=inner), Node("empty"), Node("child", child=inner)), ())


def test_what_is_written_is_read(tmp_path: Path) -> None:
    artefact = made().artefact
    artefact = replace(artefact, graphs=(nested(), *artefact.graphs), kv={"free_bytes": 5})
    told = Graph(
        8, tuple(replace(n, told=(Told(0, 4, 4, 0),)) for n in artefact.graphs[1].nodes), ()
    )
    artefact = replace(artefact, graphs=(*artefact.graphs, told), told=("rank",))
    path = artefact_path(tmp_path, artefact.key)
    write_artefact(path, artefact)
    assert read_artefact(path, artefact.key) == artefact
    assert load_artefact(tmp_path, artefact.key) == artefact
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert count_nodes(nested()) == 5


def test_another_key_has_another_file(tmp_path: Path) -> None:
    artefact = made().artefact
    write_artefact(artefact_path(tmp_path, artefact.key), artefact)
    for field, value in (
        ("gpu", "other"), ("memory_bytes", 1), ("mig", "1g"), ("driver", 1), ("model", "m"),
        ("dtype", "float16"), ("batch_sizes", (1, 2)), ("max_tokens", 1),
        ("memory_fraction", 0.5), ("program", "p"),
    ):  # fmt: skip
        key = replace(artefact.key, **{field: value})
        assert load_artefact(tmp_path, key) is None
        with pytest.raises(DataError, match=rf"key\.{field}: "):
            read_artefact(artefact_path(tmp_path, artefact.key), key)


@pytest.mark.parametrize("damage", ["cut", "bit", "size", "version", "other", "empty"])
def test_a_damaged_file_is_named_and_not_used(tmp_path: Path, damage: str) -> None:
    artefact = made().artefact
    path = artefact_path(tmp_path, artefact.key)
    write_artefact(path, artefact)
    data = bytearray(path.read_bytes())
    wanted = "content: cut or changed"
    if damage == "cut":
        data = data[:-9]
    elif damage == "bit":
        data[len(data) // 2] ^= 1
    elif damage == "size":
        data[19] ^= 0x80  # more than any memory has
    elif damage == "version":
        data[10] += 1
        wanted = f"version: {VERSION + 1}, this code reads {VERSION}"
    else:
        data = bytearray(b"something else" if damage == "other" else b"")
        wanted = "magic: "
    path.write_bytes(data)
    with pytest.raises(DataError, match=wanted):
        read_artefact(path)
    with pytest.warns(RepositoryWarning, match=r"captured, and the file replaced"):
        assert load_artefact(tmp_path, artefact.key) is None


@pytest.mark.parametrize(
    "inside",
    [b"", b"abc", struct.pack("<Q", 1 << 40) + b"{}", struct.pack("<Q", 4) + b"{{{{",
     struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 2) + b"{}",
     struct.pack("<Q", 28) + b'{"values": {}, "blobs": {}} '],
)  # fmt: skip
def test_a_whole_file_of_something_else_is_named(tmp_path: Path, inside: bytes) -> None:
    path = artefact_path(tmp_path, made().artefact.key)
    write_artefact(path, made().artefact)
    head = bytearray(path.read_bytes()[:12])
    head += struct.pack("<Q32s", len(inside), hashlib.sha256(inside).digest())
    path.write_bytes(bytes(head) + pa.Codec("zstd").compress(inside, asbytes=True))
    with pytest.raises(DataError, match="content: not"):
        read_artefact(path)


def test_no_file_is_no_artefact(tmp_path: Path) -> None:
    assert load_artefact(tmp_path, made().artefact.key) is None
    with pytest.raises(DataError, match="cannot be read"):
        read_artefact(tmp_path / "none")
