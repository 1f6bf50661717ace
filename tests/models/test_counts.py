"""Counts against published numbers, real checkpoints and laws."""

import json
import math
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.models import (
    ModelSpec,
    catalog_names,
    expected_active_experts,
    flops_per_token,
    gemms,
    kv_bytes_per_token,
    load_spec,
    param_count,
    streamed_bytes,
    weight_bytes,
)

# Parameters as the model hubs report them for the published weights (language model only for VL).
PUBLISHED = {
    "deepseek-v3": 671_026_419_200,  # without the layer that predicts a token more
    "falcon-7b": 6_921_720_704,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616,
    "llama-3-3b": 3_212_749_824,
    "llama-3-70b": 70_553_706_496,
    "llama-3-8b": 8_030_261_248,
    "mixtral-8x7b": 46_702_792_704,
    "qwen1.5-0.5b": 463_987_712,
    "qwen1.5-1.8b": 1_836_828_672,
    "qwen1.5-14b": 14_167_290_880,
    "qwen1.5-4b": 3_950_369_280,
    "qwen1.5-7b": 7_721_324_544,
    "qwen2.5-vl-7b": 7_615_616_512,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "yi-6b": 6_061_035_520,
    "yi-9b": 8_829_407_232,
}

specs = st.sampled_from(catalog_names()).map(load_spec)
moe_specs = st.sampled_from([n for n in catalog_names() if load_spec(n).experts]).map(load_spec)


@pytest.mark.parametrize("name", catalog_names())
def test_parameters_are_those_published(name: str) -> None:
    spec = load_spec(name)
    assert param_count(spec) == PUBLISHED[name]
    if spec.weights is None:
        assert weight_bytes(spec) == 2 * PUBLISHED[name]
    else:  # scales, and a few matrices of two bytes a number
        each = spec.weights.bits / 8
        most = 1.01 if each == 1.0 else 0.57
        assert each < weight_bytes(spec) / PUBLISHED[name] < most


def test_sizes_are_those_medusa_prints(shared: Path) -> None:
    rows = yaml.safe_load((shared / "papers" / "claims.yaml").read_text("utf-8"))
    printed = {
        r["id"].rpartition(".")[2]: r["value"]["param_gb"]
        for r in rows
        if r["id"].startswith("medusa.table1.") and "param_gb" in r["value"]
    }
    ours = {
        "falcon_7b": "falcon-7b", "llama2_7b": "llama-2-7b", "llama2_13b": "llama-2-13b",
        "qwen15_0p5b": "qwen1.5-0.5b", "qwen15_1p8b": "qwen1.5-1.8b", "qwen15_4b": "qwen1.5-4b",
        "qwen15_7b": "qwen1.5-7b", "qwen15_14b": "qwen1.5-14b", "yi_6b": "yi-6b", "yi_9b": "yi-9b",
    }  # fmt: skip
    assert set(printed) == set(ours)
    for key, name in ours.items():
        # Its sizes are GiB and count the head even where it is tied.
        untied = replace(load_spec(name), tie_embeddings=False)
        assert weight_bytes(untied) / 2**30 == pytest.approx(printed[key], abs=0.06), name


def test_a_13b_layer_is_the_one_cocoserve_prints(shared: Path) -> None:
    rows = yaml.safe_load((shared / "papers" / "claims.yaml").read_text("utf-8"))
    printed = {r["id"].rpartition(".")[2]: r["value"] for r in rows
               if r["id"].startswith("cocoserve.table1.")}  # fmt: skip
    sizes = {g.name: g.k * g.n * 2 / 2**20 for g in gemms(load_spec("llama-2-13b"))}
    assert sizes["o"] == printed["qkvo"]["memory_mb"]
    assert sizes["qkv"] + sizes["o"] == printed["self_attn"]["memory_mb"]
    assert sizes["down"] == printed["ffn_proj"]["memory_mb"]
    layer = sum(sizes[n] for n in ("qkv", "o", "gate_up", "down"))
    assert layer == printed["decoder_layer"]["memory_mb"]


def test_shapes_of_a_dense_and_an_moe_model() -> None:
    dense = {g.name: (g.k, g.n, g.count, g.kind) for g in gemms(load_spec("llama-3-8b"))}
    assert dense == {
        "qkv": (4096, 6144, 32, "dense"),
        "o": (4096, 4096, 32, "dense"),
        "gate_up": (4096, 28672, 32, "dense"),
        "down": (14336, 4096, 32, "dense"),
        "lm_head": (4096, 128256, 1, "head"),
    }
    moe = {g.name: (g.k, g.n, g.count, g.kind) for g in gemms(load_spec("qwen3-30b-a3b"))}
    assert moe == {
        "qkv": (2048, 5120, 48, "dense"),
        "o": (4096, 2048, 48, "dense"),
        "router": (2048, 128, 48, "dense"),
        "expert_gate_up": (2048, 1536, 48, "expert"),
        "expert_down": (768, 2048, 48, "expert"),
        "lm_head": (2048, 151936, 1, "head"),
    }
    falcon = {g.name: (g.k, g.n) for g in gemms(load_spec("falcon-7b"))}
    assert falcon["qkv"] == (4544, 4672)
    assert falcon["up"] == (4544, 18176)
    assert "gate_up" not in falcon


def test_kv_cache_of_known_models() -> None:
    assert kv_bytes_per_token(load_spec("llama-3-8b")) == 128 * 1024
    assert kv_bytes_per_token(load_spec("llama-2-13b")) == 800 * 1024
    assert kv_bytes_per_token(load_spec("qwen3-30b-a3b")) == 96 * 1024


def safetensors_shapes(folder: Path) -> dict[str, list[int]]:
    """Shapes from the headers: eight bytes of length, then that much JSON."""
    shapes: dict[str, list[int]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as f:
            (size,) = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(size))
        header.pop("__metadata__", None)
        shapes |= {name: entry["shape"] for name, entry in header.items()}
    return shapes


CHECKPOINTS = (
    "llama", "llama_bf16", "llama_sharded", "llama_tied", "mistral", "mixtral", "mixtral_bf16",
    "qwen2", "qwen3", "qwen3_bf16", "qwen3_moe", "qwen3_moe_bf16",
)  # fmt: skip


@pytest.mark.parametrize("folder", CHECKPOINTS)
def test_counts_are_those_of_a_real_checkpoint(folder: str, shared: Path) -> None:
    path = shared / "checkpoints" / folder
    spec, shapes = load_spec(path), safetensors_shapes(path)
    assert shapes
    assert spec.name == folder
    assert param_count(spec) == sum(math.prod(s) for s in shapes.values())
    # Every GEMM is the stored matrices it fuses: torch stores [n, k].
    parts = {
        "qkv": ("q_proj.weight", "k_proj.weight", "v_proj.weight"),
        "o": ("o_proj.weight",),
        "gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        "down": ("mlp.down_proj.weight",),
        "router": ("block_sparse_moe.gate.weight", "mlp.gate.weight"),
        "expert_gate_up": (".w1.weight", ".w3.weight", "gate_proj.weight", "up_proj.weight"),
        "expert_down": (".w2.weight", "down_proj.weight"),
        "lm_head": ("embed_tokens.weight" if spec.tie_embeddings else "lm_head.weight",),
    }
    for g in gemms(spec):
        found = [s for n, s in shapes.items() if n.endswith(parts[g.name])]
        copies = g.count * (spec.experts if g.kind == "expert" else 1)
        assert {s[1] for s in found} == {g.k}, g.name
        assert sum(s[0] for s in found) == g.n * copies, g.name


@given(specs, st.integers(0, 10**6), st.integers(0, 10**6))
def test_more_tokens_stream_no_less(spec: ModelSpec, a: int, b: int) -> None:
    few, many = sorted((a, b))
    low, high = streamed_bytes(spec, [few, many])
    assert low <= high
    looked_up = 0 if spec.tie_embeddings else spec.hidden * spec.vocab * spec.dtype_bytes
    assert high <= weight_bytes(spec) - looked_up
    if not spec.experts and few:
        assert low == high
    if not few:
        assert low == 0


@given(moe_specs, st.integers(1, 100_000))
def test_active_experts_lie_between_one_tokens_and_all(spec: ModelSpec, tokens: int) -> None:
    active = float(expected_active_experts(spec, tokens))
    least = min(spec.experts, spec.experts_per_token)
    assert least * (1 - 1e-12) <= active <= min(spec.experts, tokens * spec.experts_per_token)


def test_active_experts_match_draws() -> None:
    spec = load_spec("qwen3-30b-a3b")
    rng = np.random.default_rng(0)
    draws = 400
    for tokens in (1, 4, 32):
        distinct = [
            len({
                int(e)
                for _ in range(tokens)
                for e in rng.permutation(spec.experts)[: spec.experts_per_token]
            })
            for _ in range(draws)
        ]  # fmt: skip
        error = 4 * np.std(distinct) / math.sqrt(draws) + 1e-9
        assert abs(np.mean(distinct) - expected_active_experts(spec, tokens)) <= error


@given(specs)
def test_a_huge_step_streams_every_matrix(spec: ModelSpec) -> None:
    every = sum(
        g.k * g.n * g.count * (spec.experts if g.kind == "expert" else 1) for g in gemms(spec)
    )
    each, within = float(spec.dtype_bytes), 1e-12
    if (form := spec.weights) is not None:  # with scales, and some matrices as wide as activations
        each, within = (1.0, 1e-2) if form.bits == 8 else (0.53, 5e-2)
    assert float(streamed_bytes(spec, 10**7)) == pytest.approx(every * each, rel=within)


@given(specs, st.lists(st.integers(0, 5000), min_size=1, max_size=5))
def test_arrays_and_scalars_agree(spec: ModelSpec, tokens: list[int]) -> None:
    for f in (streamed_bytes, expected_active_experts, flops_per_token):
        whole = f(spec, np.array(tokens))
        assert whole.shape == (len(tokens),)
        assert whole.dtype == np.float64
        assert [float(f(spec, t)) for t in tokens] == whole.tolist()


@given(specs, st.integers(0, 10**6), st.integers(0, 10**6))
def test_longer_context_costs_no_less(spec: ModelSpec, a: int, b: int) -> None:
    low, high = flops_per_token(spec, sorted((a, b)))
    assert low <= high
    used = sum(
        g.k * g.n * g.count * (spec.experts_per_token if g.kind == "expert" else 1)
        for g in gemms(spec)
    )
    assert low >= 2 * used
    if not (spec.sliding_window or spec.partial_window):
        both = spec.head_dim + (spec.latent.value_dim if spec.latent else spec.head_dim)
        assert high - low == 2 * spec.layers * spec.heads * both * abs(a - b)


def test_windows_clip_attention() -> None:
    spec = load_spec("llama-2-7b")
    every = replace(spec, sliding_window=100)
    some = replace(spec, partial_window=100, partial_window_layers=8)
    per_key = 4 * spec.heads * spec.head_dim
    at_100 = float(flops_per_token(spec, 100))
    assert float(flops_per_token(every, 1000)) == at_100
    assert float(flops_per_token(some, 1000)) == at_100 + per_key * 24 * 900
    assert float(flops_per_token(some, 50)) == float(flops_per_token(spec, 50))


@given(specs, st.integers(2, 4))
def test_counts_grow_with_every_size(spec: ModelSpec, times: int) -> None:
    for field in ("layers", "hidden", "vocab", "intermediate", "experts", "moe_intermediate"):
        bigger = replace(spec, **{field: getattr(spec, field) * times})
        is_unused = field == "intermediate" and spec.experts and not spec.dense_layers
        unused = is_unused or not getattr(spec, field)
        assert (param_count(bigger) > param_count(spec)) is not bool(unused)


@pytest.mark.parametrize("bad", [-1, math.nan, [3, -2]])
def test_impossible_token_counts_are_refused(bad: object) -> None:
    for f, field in ((streamed_bytes, "tokens"), (flops_per_token, "context")):
        with pytest.raises(SettingError, match=f"^{field}="):
            f(load_spec("mixtral-8x7b"), bad)  # type: ignore[operator]
