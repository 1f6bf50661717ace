"""Families of 2025 and 2026: sparse attention, states, blocks of several kinds, formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.models import (
    cache_shape,
    flops_per_token,
    from_hf_config,
    gemm_bytes,
    gemms,
    kv_bytes_per_token,
    load_spec,
    param_count,
    rank_of,
    read_shape,
    state_bytes,
    weight_bytes,
)
from tests.models.counted import CONFIGS, spec_of


def test_sparse_attention_holds_all_and_reads_a_part() -> None:
    glm = spec_of("glm5")
    held, read = cache_shape(glm), read_shape(glm)
    assert (held.windowed, held.window, held.state) == (0, 0, 0)
    assert read.full + read.windowed == held.full
    # of 704 values a layer, 128 of the index are read at each position and 576 at 2048 of them
    whole = spec_of("glm5", index_topk=10**6)
    many = flops_per_token(glm, [2048, 4096]), flops_per_token(whole, [2048, 4096])
    assert many[0][0] == many[1][0]
    assert many[0][1] - many[0][0] == 78 * 2 * 32 * 128 * 2048
    assert read.window == 2048
    assert read.windowed / read.full == 576 / 128
    flash = spec_of("deepseek_v4_flash")
    held, read = cache_shape(flash), read_shape(flash)
    assert (held.window, read.window) == (128, 4 * 512)
    place = kv_bytes_per_token(flash) / (held.full + held.windowed)
    # beyond the windows: 43 of 128 positions, 21 of 512 entries, and all other entries
    at = 1_000_000
    entries = 21 * 128 * at // 4 + 20 * 512 * at // 128
    wanted = 2 * (43 * 128 * 512 + 21 * 512 * 512 + entries)
    assert place * (read.full * at + read.windowed * read.window) == pytest.approx(wanted)


def test_layers_of_one_block_have_one_norm_and_half_of_a_layer() -> None:
    spec = spec_of("nemotron3_super")
    found = {g.name: (g.k, g.n, g.count, g.kind) for g in gemms(spec)}
    assert found == {
        "qkv": (4096, 4096 + 2 * 256, 8, "dense"),
        "o": (4096, 4096, 8, "dense"),
        "linear_in": (4096, 18560, 40, "dense"),
        "linear_out": (8192, 4096, 40, "dense"),
        "router": (4096, 512, 40, "dense"),
        "experts_in": (4096, 1024, 40, "dense"),
        "expert_up": (1024, 2688, 40, "expert"),
        "expert_down": (2688, 1024, 40, "expert"),
        "experts_out": (1024, 4096, 40, "dense"),
        "shared_up": (4096, 5376, 40, "dense"),
        "shared_down": (5376, 4096, 40, "dense"),
        "lm_head": (4096, 131072, 1, "head"),
    }


def test_blocks_of_several_widths_and_layers_without_attention() -> None:
    def block(mult: float | None, group: int | None) -> dict[str, Any]:
        rest = {"window_length": None, "num_sink_tokens": None, "sparsify": None}
        return {
            "attention": rest | {"n_heads_in_group": group, "no_op": group is None},
            "ffn": {"ffn_mult": mult, "no_op": mult is None},
        }

    config = {
        "model_type": "nemotron-nas", "hidden_size": 1024, "num_hidden_layers": 4,
        "num_attention_heads": 16, "num_key_value_heads": None, "vocab_size": 1000,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "intermediate_size": None,
        "block_configs": [block(5.25, 8), block(2.625, None), block(2.625, 8), block(None, 8)],
    }  # fmt: skip
    spec = from_hf_config(config, "nas")
    widths = (3584, 1792, 1792, 0)  # 2/3 of the multiple, in whole 256
    attention = 1024 * (1024 + 2 * 128) + 1024 * 1024
    wanted = 2 * 1000 * 1024 + 1024 * (1 + 6) + 3 * attention + 3 * 1024 * sum(widths)
    assert (spec.widths, param_count(spec)) == (widths, wanted)
    assert kv_bytes_per_token(spec) == 3 * 2 * 2 * 64 * 2
    config["block_configs"][1] = block(1.0, 4)
    with pytest.raises(SettingError, match=r"block_configs=\[4, 8\]: expected one n_heads_in_g"):
        from_hf_config(config, "nas")


def test_fp4_experts_among_fp8_blocks_have_their_bytes() -> None:
    """DeepSeek V4: experts of half a byte, scales of one byte for 32 or for 128 x 128."""
    sizes = {(g.name, g.k): gemm_bytes(spec_of("deepseek_v4_flash"), g)
             for g in gemms(spec_of("deepseek_v4_flash"))}  # fmt: skip
    assert sizes["expert_down", 2048] == 2048 * 4096 // 2 + 2048 * 4096 // 32
    assert sizes["o_b", 8192] == 8192 * 4096 + 64 * 32
    assert sizes["compress", 4096] == 2 * 4096 * 1024  # of the ratio 128: not quantised
    base = spec_of("deepseek_v4_flash", expert_dtype="fp8")
    (down,) = (g for g in gemms(base) if g.name == "expert_down")
    assert gemm_bytes(base, down) == 2048 * 4096 + 16 * 32 * 4


def modelopt(names: list[str] | dict[str, str], **more: Any) -> dict[str, Any]:
    if isinstance(names, list):
        return {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": names, **more}
    layers = {name: {"quant_algo": kind, "group_size": 16} for name, kind in names.items()}
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
            "quantized_layers": layers, **more}  # fmt: skip


def packed(k: int, n: int) -> int:
    """Return the bytes of NVFP4: half a byte, a byte for 16, and four for the matrix."""
    return k * n // 2 + k * n // 16 + 4


def test_modules_are_named_as_the_family_s_checkpoints_do() -> None:
    """Gemma 4: `mlp` is the dense block, `experts` stand beside it."""
    kept = [f"model.language_model.layers.{i}.{m}*" for i in range(30)
            for m in ("mlp", "router", "self_attn")]  # fmt: skip
    spec = spec_of("gemma4_26b_a4b", quantization_config=modelopt([*kept, "lm_head"]))
    plain = weight_bytes(spec_of("gemma4_26b_a4b"))
    one = 2 * packed(2816, 704) + packed(704, 2816) - 2 * 3 * 2816 * 704
    assert weight_bytes(spec) == plain + 30 * 128 * one
    # Nemotron: all are `mixer`; its first states stay wide
    kept = [f"backbone.layers.{i}.mixer.{m}" for i in (0, 2) for m in ("in_proj", "out_proj")]
    nano = spec_of("nemotron3_nano", quantization_config=modelopt([*kept, "lm_head"]))
    inward = {(g.count, gemm_bytes(nano, g)) for g in gemms(nano) if g.name == "linear_in"}
    assert inward == {(2, 2 * 2688 * 10304), (21, packed(2688, 10304))}
    # MiniMax: `gate` and `self_attn` of each layer, experts by w1 to w3
    kept = [f"model.layers.{i}.{m}" for i in range(62) for m in ("block_sparse_moe.gate",
                                                                 "self_attn*")]  # fmt: skip
    m2 = spec_of("minimax_m2", quantization_config=modelopt(kept))
    assert {g.name for g in gemms(m2) if g.forms[0] is not None} == {
        "expert_gate_up", "expert_down",
    }  # fmt: skip


def test_formats_by_layer_and_module() -> None:
    at = "model.language_model.layers"
    named = {f"{at}.{i}.mlp.experts": "W4A16_NVFP4" for i in range(40)}
    named |= {f"{at}.{i}.linear_attn.{m}": "FP8" for i in range(40) if (i + 1) % 4
              for m in ("in_proj_qkv", "in_proj_z", "out_proj")}  # fmt: skip
    named["lm_head"] = "W4A16_NVFP4"
    spec = spec_of("qwen3_5_35b_a3b", quantization_config=modelopt(named))
    plain = weight_bytes(spec_of("qwen3_5_35b_a3b"))
    experts = 40 * 256 * (3 * packed(2048, 512) - 2 * 3 * 2048 * 512)
    states = 30 * (3 * 4 - 2048 * (8192 + 4096) - 4096 * 2048)
    head = packed(2048, 248320) - 2 * 2048 * 248320
    assert weight_bytes(spec) == plain + experts + states + head
    kept = modelopt([f"model.layers.{i}*" for i in (0, 61)])
    v32 = spec_of("deepseek_v32", quantization_config=kept)
    dense = [(g.count, gemm_bytes(v32, g)) for g in gemms(v32) if g.name == "down"]
    assert sorted(dense) == [(1, 2 * 18432 * 7168), (2, packed(18432, 7168))]


def test_alternatives_of_an_expression_are_names() -> None:
    """Kimi K2.5: int4 experts, wide dense blocks, attention and shared experts."""
    group = {"targets": ["Linear"], "weights": {
        "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32,
    }}  # fmt: skip
    ignored = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
               r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]  # fmt: skip
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized",
              "ignore": ignored, "config_groups": {"group_0": group}}  # fmt: skip
    spec = spec_of("deepseek_v32", quantization_config=config)
    wide = {g.name for g in gemms(spec) if g.forms[0] is None}
    assert wide == {
        "qkv_a", "q_b", "kv_b", "o", "index_q", "index_k", "router", "shared_gate_up",
        "shared_down", "gate_up", "down", "lm_head",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("qwen3_5_35b_a3b", 2), ("nemotron3_super", 8), ("mimo_v2_flash", 4), ("kimi_k3", 8),
     ("deepseek_v4_flash", 8), ("gemma4_26b_a4b", 2)],
)  # fmt: skip
def test_ranks_share_heads_states_and_experts(name: str, ranks: int) -> None:
    spec = spec_of(name, quantization_config=None)
    part = rank_of(spec, ranks)
    assert state_bytes(part) * ranks == state_bytes(spec)
    shares = np.array([
        sum(g.k * g.n * g.count for g in gemms(s) if g.kind == "expert") for s in (spec, part)
    ])  # fmt: skip
    assert shares[0] == ranks * shares[1]
    assert weight_bytes(spec) / ranks < weight_bytes(part) < 1.3 * weight_bytes(spec) / ranks
    with pytest.raises(SettingError, match="a number that shares the"):
        rank_of(spec, 7)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("minimax_m3", {"sparse_attention_config": None}, "sparse_attention_config=None: expected"),
        ("glm5_2", {"indexer_types": ["full"]}, "indexer_types=.*expected a list of 78 names"),
        ("glm5", {"index_topk": None}, "index_topk=None: expected a whole number"),
        ("deepseek_v4_flash", {"compress_ratios": [4]}, "compress_ratios=.*a list of 43 ratios"),
        ("nemotron3_nano", {"hybrid_override_pattern": "M*Q"}, "='Q': expected one of mamba, att"),
        ("nemotron3_nano", {"hybrid_override_pattern": None}, "num_hidden_layers=0: expected"),
        ("nemotron3_nano", {"mamba_ssm_cache_dtype": "fp8"}, "mamba_ssm_cache_dtype='fp8'"),
        ("mimo_v2_flash", {"hybrid_layer_pattern": [1]}, "hybrid_layer_pattern=.*a list of 48"),
        ("mimo_v2_flash", {"moe_layer_freq": [1]}, "moe_layer_freq=.*a list of 48 kinds"),
        ("kimi_k3", {"text_config": {"model_type": "kimi_linear"}}, "hidden_size=None"),
        ("step3_7_flash", {"head_dim": None, "num_attention_heads": 3}, "num_attention_heads=3"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        spec_of(name, **changes)


def test_models_with_layers_that_are_not_alike_are_refused_by_field() -> None:
    text = CONFIGS["gemma4_26b_a4b"]["text_config"] | {"hidden_size_per_layer_input": 256}
    with pytest.raises(SettingError, match="hidden_size_per_layer_input=256: expected 0, the onl"):
        spec_of("gemma4_26b_a4b", text_config=text)


def test_shared_configs_have_the_values_by_hand(shared_part: Callable[[str], Path]) -> None:
    configs = shared_part("cases2/simulator/configs")
    for name, billions, kv, state in (
        ("qwen3_5_27b", 26.9, 65_536, 153_944_064), ("qwen3_5_35b_a3b", 34.66, 20_480, 64_389_120),
        ("minimax_m2", 228.69, 253_952, 0), ("glm5", 743.9, 89_856 + 78 * 128 * 2, 0),
        ("gemma4_26b_a4b", 25.2, 225_280, 0), ("nemotron3_nano", 31.58, 6_144, 49_082_368),
    ):  # fmt: skip
        spec = load_spec(configs / f"{name}.json")
        assert param_count(spec) / 1e9 == pytest.approx(billions, abs=0.05)
        assert (kv_bytes_per_token(spec), state_bytes(spec)) == (kv, state)
