"""Our header reader against the gguf library's."""

from __future__ import annotations

import mmap
from pathlib import Path

import gguf
import numpy as np
import pytest

from c2c.errors import DataError
from c2c.transformer.gguf.header import GgufHeader, read_header
from tests.transformer.gguf_files import Builder


def header_of(path: Path) -> GgufHeader:
    with path.open("rb") as file:
        return read_header(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), str(path))


def test_agrees_with_the_library(tmp_path: Path) -> None:
    builder = Builder(kind="Q4_K")
    path = builder.write(tmp_path / "m.gguf").path
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    for name, add, value in [
        ("u8", writer.add_uint8, 200), ("i8", writer.add_int8, -100),
        ("u16", writer.add_uint16, 60000), ("i16", writer.add_int16, -30000),
        ("u32", writer.add_uint32, 4_000_000_000), ("i32", writer.add_int32, -5),
        ("u64", writer.add_uint64, 2**63 + 1), ("i64", writer.add_int64, -(2**62)),
        ("f32", writer.add_float32, 0.1), ("f64", writer.add_float64, 0.1),
        ("yes", writer.add_bool, True), ("no", writer.add_bool, False),
        ("text", writer.add_string, "naïve 日本 {{ x }}"), ("none", writer.add_string, ""),
        ("texts", writer.add_array, ["a", "Ġé", ""]), ("ints", writer.add_array, [3, -1, 2**30]),
        ("floats", writer.add_array, [0.5, -1.25]), ("flags", writer.add_array, [True, False]),
    ]:  # fmt: skip
        add(name, value)
    rng = np.random.default_rng(0)
    writer.add_tensor("a", rng.normal(size=(3, 5)).astype(np.float32))
    writer.add_tensor("b.c", rng.normal(size=(2, 3, 4)).astype(np.float16))
    rows = gguf.quantize(
        rng.normal(size=(4, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q8_0
    )
    writer.add_tensor("q", rows, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    other = tmp_path / "other.gguf"
    writer.write_header_to_file(other)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for file in (path, other):
        ours, theirs = header_of(file), gguf.GGUFReader(file)
        fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
        assert ours.metadata == fields
        assert list(ours.tensors) == [t.name for t in theirs.tensors]
        for tensor in theirs.tensors:
            info = ours.tensors[tensor.name]
            assert info.shape == tuple(reversed(tensor.shape.tolist()))
            assert info.kind == tensor.tensor_type
            assert (info.offset_bytes, info.size_bytes) == (tensor.data_offset, tensor.n_bytes)


def test_a_vocabulary_that_is_not_text_is_refused_where_it_is_read(tmp_path: Path) -> None:
    """Weights can be read meanwhile: the rest of the header is sound."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_array("tokens", ["good", "GOOD"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(data.replace(b"GOOD", b"G\xff\xfeD"))
    metadata = header_of(tmp_path / "m.gguf").metadata
    assert metadata["general.architecture"] == "llama"
    assert len(metadata["tokens"]) == 2
    with pytest.raises(DataError, match="metadata key 'tokens' is not UTF-8 text"):
        metadata["tokens"][0]
