"""GGUF files as checkpoints: names, order of rows, every quantisation, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from c2c.errors import DataError
from c2c.models import from_hf_config
from c2c.transformer.gguf.file import GgufCheckpoint
from tests.transformer.gguf_files import Builder, dequantized

ALL_KINDS = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "Q5_K",
)  # fmt: skip
FAMILIES = [
    ("llama", False, "llama"),
    ("llama", True, "mixtral"),
    ("qwen2", False, "qwen2"),
    ("qwen3", False, "qwen3"),
    ("qwen3moe", True, "qwen3_moe"),
]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_kind_reads_as_the_library_reads_it(tmp_path: Path, kind: str) -> None:
    built = Builder(kind=kind).write(tmp_path / "m.gguf")
    checkpoint = GgufCheckpoint(built.path)
    assert set(checkpoint.names) == set(built.wanted)
    for name, wanted in built.wanted.items():
        found = checkpoint.tensor(name)
        assert checkpoint.kind(name) == built.kinds[name]
        assert found.shape == wanted.shape == checkpoint.shape(name)
        np.testing.assert_array_equal(found.astype(np.float32), wanted)
    types = {"F16": np.float16, "BF16": ml_dtypes.bfloat16}
    assert checkpoint.tensor("lm_head.weight").dtype == types.get(kind, np.float32)


@pytest.mark.parametrize(("arch", "moe", "family"), FAMILIES)
@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_every_family(tmp_path: Path, arch: str, moe: bool, family: str, kind: str) -> None:
    built = Builder(arch, kind, moe=moe).write(tmp_path / "m.gguf")
    checkpoint = GgufCheckpoint(built.path)
    spec = from_hf_config(checkpoint.config, "tiny")
    assert (spec.family, spec.layers, spec.hidden, spec.vocab) == (family, 2, 256, 96)
    assert (spec.heads, spec.kv_heads, spec.head_dim) == (4, 2, 64)
    assert (spec.rope_theta, spec.norm_eps, spec.max_position) == (500000.0, 1e-5, 2048)
    assert (spec.experts, spec.experts_per_token) == ((3, 2) if moe else (0, 0))
    assert spec.qkv_bias == (arch == "qwen2")
    assert not spec.tie_embeddings
    assert set(checkpoint.names) == set(built.wanted)
    for name, wanted in built.wanted.items():
        np.testing.assert_array_equal(checkpoint.tensor(name).astype(np.float32), wanted)
    stored = {name: checkpoint.stored_bytes(name) for name in checkpoint.names}
    assert sum(stored.values()) < built.path.stat().st_size < sum(stored.values()) + 16384


def test_only_q_and_k_of_llama_are_reordered(tmp_path: Path) -> None:
    """Against the order written out for one head: rows 2i and 2i + 1 are i and half + i."""
    builder = Builder()
    built = builder.write(tmp_path / "m.gguf")
    checkpoint = GgufCheckpoint(built.path)
    reader = {t.name: np.array(t.data) for t in gguf.GGUFReader(built.path).tensors}
    order = [h * 64 + half * 32 + i for h in range(4) for i in range(32) for half in (0, 1)]
    q = checkpoint.tensor("model.layers.1.self_attn.q_proj.weight")
    np.testing.assert_array_equal(reader["blk.1.attn_q.weight"], q[order])
    assert not np.array_equal(reader["blk.1.attn_q.weight"], q)
    v = checkpoint.tensor("model.layers.1.self_attn.v_proj.weight")
    np.testing.assert_array_equal(reader["blk.1.attn_v.weight"], v)


def test_plain_tensors_are_views_of_the_file(tmp_path: Path) -> None:
    built = Builder(kind="BF16").write(tmp_path / "m.gguf")
    checkpoint = GgufCheckpoint(built.path)
    tensor = checkpoint.tensor("lm_head.weight")
    assert np.shares_memory(tensor, checkpoint._bytes)
    assert not tensor.flags.writeable
    before = tensor.copy()
    checkpoint.release()
    np.testing.assert_array_equal(tensor, before)


def test_tied_embeddings_and_sliding_window(tmp_path: Path) -> None:
    builder = Builder()
    builder.tied = True
    builder.keys = {"llama.attention.sliding_window": 128, "llama.rope.dimension_count": 64}
    checkpoint = GgufCheckpoint(builder.write(tmp_path / "m.gguf").path)
    spec = from_hf_config(checkpoint.config, "tiny")
    assert (spec.family, spec.tie_embeddings, spec.sliding_window) == ("mistral", True, 128)
    assert "lm_head.weight" not in checkpoint.names


def llama3_factors(
    factor: float, low: float, high: float, length: int, size: int, theta: float = 500000.0
) -> np.ndarray:
    """The tensor that llama.cpp's converter writes, case by case as it does."""
    found = []
    for i in range(0, size, 2):
        wavelength = 2 * np.pi * theta ** (i / size)
        if wavelength < length / high:
            found.append(1.0)
        elif wavelength > length / low:
            found.append(factor)
        else:
            smooth = (length / wavelength - low) / (high - low)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)


@pytest.mark.parametrize(
    ("factor", "low", "high", "length"),
    [(8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192), (8.0, 1.0, 6.5, 4096), (4.0, 2.0, 8.0, 8192)],
)
def test_llama3_rope_scaling_is_recovered(
    tmp_path: Path, factor: float, low: float, high: float, length: int
) -> None:
    builder = Builder()
    factors = llama3_factors(factor, low, high, length, 64)
    builder.extra = {"rope_freqs.weight": factors}
    scaling = GgufCheckpoint(builder.write(tmp_path / "m.gguf").path).config["rope_scaling"]
    assert scaling["rope_type"] == "llama3"
    again = llama3_factors(
        scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"],
        scaling["original_max_position_embeddings"], 64,
    )  # fmt: skip
    np.testing.assert_allclose(again, factors, rtol=1e-4)
    if low == 1:  # else the same scaling has another, equal description
        assert scaling["original_max_position_embeddings"] == length


def test_rope_factors_of_another_kind_are_refused(tmp_path: Path) -> None:
    builder = Builder()
    builder.extra = {"rope_freqs.weight": np.linspace(1, 9, 32, dtype=np.float32) ** 2}
    with pytest.raises(DataError, match="not a Llama 3 scaling"):
        GgufCheckpoint(builder.write(tmp_path / "m.gguf").path)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"])
def test_quantised_parts_make_the_same_matrix(tmp_path: Path, kind: str) -> None:
    built = Builder(kind=kind).write(tmp_path / "m.gguf")
    checkpoint = GgufCheckpoint(built.path)
    for name, wanted in built.wanted.items():
        if built.kinds[name] == "F32":
            with pytest.raises(DataError, match="stored as F32"):
                checkpoint.quantized(name)
            continue
        parts = checkpoint.quantized(name)
        assert parts.values.shape == wanted.shape
        assert parts.scales.shape == (wanted.shape[0], wanted.shape[1] // parts.group)
        assert (parts.minima is not None) == (kind in ("Q4_1", "Q4_K"))
        np.testing.assert_array_equal(dequantized(parts), wanted)


def test_experts_are_quantised_one_by_one(tmp_path: Path) -> None:
    built = Builder("qwen3moe", "Q4_K", moe=True).write(tmp_path / "m.gguf")
    name = "model.layers.1.mlp.experts.2.down_proj.weight"
    parts = GgufCheckpoint(built.path).quantized(name)
    np.testing.assert_array_equal(dequantized(parts), built.wanted[name])


def test_a_name_that_does_not_exist(tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(Builder().write(tmp_path / "m.gguf").path)
    with pytest.raises(KeyError, match="no tensor 'model\\.nothing'"):
        checkpoint.tensor("model.nothing")


# What is refused


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("arch", "gptneox", "architecture 'gptneox' is not supported.*llama, qwen2"),
        ("drop", {"blk.1.attn_v.weight", "blk.0.ffn_norm.weight"},
         r"lacks tensors.*blk\.0\.ffn_norm\.weight, blk\.1\.attn_v\.weight"),
        ("extra", {"blk.0.attn_sinks.weight": np.ones(4, np.float32)},
         r"has unexpected tensors.*blk\.0\.attn_sinks\.weight"),
        ("keys", {"llama.feed_forward_length": 1024},
         r"ffn_gate\.weight' has shape \(512, 256\), expected \(1024, 256\)"),
        ("keys", {"llama.block_count": None}, "'llama.block_count' is missing"),
        ("keys", {"llama.block_count": 3}, "lacks tensors for a llama model of 3 layers"),
        ("keys", {"llama.block_count": 4_000_000_000}, "only 21 tensors"),
        ("keys", {"llama.attention.head_count": [4, 4]}, "not a whole number"),
        ("keys", {"llama.expert_count": 8}, "router is missing"),
        ("keys", {"llama.attention.value_length": 32}, "only equal ones are supported"),
        ("keys", {"llama.rope.dimension_count": 32, "llama.attention.key_length": 64},
         "only equal ones"),
        ("keys", {"split.count": 3}, "one of 3 parts"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_work_is_refused(
    tmp_path: Path, field: str, value: object, match: str
) -> None:
    builder = Builder()
    setattr(builder, field, value)
    with pytest.raises(DataError, match=match):
        GgufCheckpoint(builder.write(tmp_path / "m.gguf").path)


def test_a_kind_the_library_cannot_read(tmp_path: Path) -> None:
    path = Builder(kind="Q8_0").write(tmp_path / "m.gguf").path
    # The type's number stands behind the name, the number of dimensions and the dimensions.
    data = bytearray(path.read_bytes())
    at = data.index(b"output.weight") + len(b"output.weight") + 4 + 16
    assert struct.unpack_from("<I", data, at)[0] == GGMLQuantizationType.Q8_0
    for number, match in ((GGMLQuantizationType.Q8_1, "Q8_1.*cannot read"), (999, "999.*unknown")):
        struct.pack_into("<I", data, at, number)
        path.write_bytes(data)
        with pytest.raises(DataError, match=match):
            GgufCheckpoint(path)


def test_files_that_are_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(DataError, match="cannot be read: No such file"):
        GgufCheckpoint(path)
    cases = {
        b"": "empty",
        b"PK\x03\x04 a zip file": "does not begin with 'GGUF'",
        b"GGUF": "truncated",
        b"GGUF" + struct.pack("<IQQ", 1, 0, 0): "version 1",
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0): "big-endian",
        b"GGUF" + struct.pack("<IQQ", 3, 2**40, 0): "number of tensors is",
    }
    for content, match in cases.items():
        path.write_bytes(content)
        with pytest.raises(DataError, match=match):
            GgufCheckpoint(path)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = Builder(kind="Q4_1").write(tmp_path / "m.gguf").path
    whole = path.read_bytes()
    last = max(t.data_offset + t.n_bytes for t in gguf.GGUFReader(path).tensors)
    lengths = np.random.default_rng(5).integers(1, last, 60)
    for length in [*lengths.tolist(), last - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match="truncated"):
            GgufCheckpoint(path)


def test_damage_in_the_header_never_crashes_or_hangs(tmp_path: Path) -> None:
    builder = Builder("llama", "Q8_0", moe=True)
    builder.keys = {"tokenizer.ggml.tokens": [f"t{i}" for i in range(40)]}
    path = builder.write(tmp_path / "m.gguf").path
    whole = path.read_bytes()
    header = min(t.data_offset for t in gguf.GGUFReader(path).tensors)
    rng = np.random.default_rng(6)
    refusals = 0
    for _ in range(300):
        data = bytearray(whole)
        data[rng.integers(4, header)] = rng.integers(0, 256)
        path.write_bytes(data)
        try:
            checkpoint = GgufCheckpoint(path)
        except DataError:
            refusals += 1
        else:
            checkpoint.tensor(checkpoint.names[-1])
    assert refusals > 100
