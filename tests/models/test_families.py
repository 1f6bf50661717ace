"""Every family against counts made by hand; caches, formats and refusals of published models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import DataError, SettingError
from c2c.models import (
    FAMILIES,
    ModelSpec,
    cache_shape,
    flops_per_token,
    from_hf_config,
    gemm_bytes,
    gemms,
    kv_bytes,
    kv_bytes_per_token,
    load_spec,
    param_count,
    state_bytes,
    streamed_bytes,
    weight_bytes,
)
from c2c.models.families import Family, nearest
from tests.models import published
from tests.models.counted import ACTIVE, CONFIGS, GROWTH, PARAMETERS, spec_of

specs = st.sampled_from(sorted(published.CONFIGS)).map(spec_of)


def test_every_family_here_is_counted() -> None:
    assert set(CONFIGS) == set(PARAMETERS) == set(GROWTH)
    assert {config["model_type"] for config in CONFIGS.values()} <= set(FAMILIES)


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_counted_by_hand(name: str) -> None:
    stated, counted = PARAMETERS[name]
    assert param_count(spec_of(name)) == stated == counted
    if name in published.CONFIGS:
        unquantised = spec_of(name, quantization_config=None)
        biases = {"deepseek_v3": 58 * 256, "kimi_k2": 60 * 384, "glm45_air": 45 * 128}.get(name, 0)
        assert weight_bytes(unquantised) == 2 * (stated + biases)  # biases of routers: four bytes


@pytest.mark.parametrize("name", CONFIGS)
def test_caches_and_states_are_those_counted_by_hand(name: str) -> None:
    spec, (first, late, state) = spec_of(name), GROWTH[name]
    assert kv_bytes_per_token(spec) == first
    assert kv_bytes_per_token(spec, 10**7) == late
    assert state_bytes(spec) == state
    window = max(8192, cache_shape(spec).window)
    grown = kv_bytes(spec, [window, window + 128])
    assert int(grown[1] - grown[0]) == 128 * late


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_those_that_the_models_are_named_after(name: str) -> None:
    spec, (low, high) = spec_of(name, quantization_config=None), ACTIVE[name]
    used = {"dense": 1, "expert": spec.experts_per_token, "head": 1}
    active = sum(used[g.kind] * g.k * g.n * g.count for g in gemms(spec))
    assert low <= active / 1e9 <= high
    assert float(streamed_bytes(spec, 1)) == pytest.approx(2 * active, rel=1e-9)


def test_windows_stop_growing() -> None:
    gemma2, gemma3 = spec_of("gemma2_9b"), spec_of("gemma3_4b")
    assert [kv_bytes_per_token(gemma2, at) for at in (4095, 4096)] == [344_064, 172_032]
    assert [kv_bytes_per_token(gemma3, at) for at in (1023, 1024)] == [139_264, 20_480]
    assert gemma3.window_layers == tuple(i for i in range(34) if i not in (5, 11, 17, 23, 29))
    wanted = [0, 344_064, 344_064 * 4096, 172_032 * (4096 + 10_000)]
    assert kv_bytes(gemma2, [0, 1, 4096, 10_000]).tolist() == wanted
    every = replace(gemma2, sliding_window=4096, partial_window=0, partial_window_layers=0,
                    window_layers=())  # fmt: skip
    assert kv_bytes_per_token(every, 4096) == 0
    assert int(kv_bytes(every, 10_000)) == 344_064 * 4096


def test_the_state_of_linear_attention_does_not_grow() -> None:
    spec = spec_of("qwen3_next_80b")
    # 36 x (32 matrices of 128 x 128 in float32 + 3 positions of 8192 channels in two bytes)
    assert state_bytes(spec) == 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2) == 77_266_944
    assert kv_bytes(spec, [0, 1, 1000]).tolist() == [0, 77_291_520, 77_266_944 + 24_576_000]
    assert state_bytes(spec_of("gemma2_9b")) == 0


@given(specs, st.integers(0, 20_000))
def test_the_cache_is_the_sum_of_its_growth(spec: ModelSpec, tokens: int) -> None:
    edges = {0, tokens, min(tokens, spec.partial_window)}
    grown = sum(
        (b - a) * kv_bytes_per_token(spec, a)
        for a, b in zip(sorted(edges), sorted(edges)[1:], strict=False)
    )
    assert int(kv_bytes(spec, tokens)) == grown + (state_bytes(spec) if tokens else 0)


def test_shapes_of_latent_attention_and_shared_experts() -> None:
    shapes = {g.name: (g.k, g.n, g.count, g.kind) for g in gemms(spec_of("deepseek_v3"))}
    assert shapes == {
        "qkv_a": (7168, 1536 + 576, 61, "dense"),
        "q_b": (1536, 128 * 192, 61, "dense"),
        "kv_b": (512, 128 * 256, 61, "dense"),
        "o": (128 * 128, 7168, 61, "dense"),
        "router": (7168, 256, 58, "dense"),
        "expert_gate_up": (7168, 4096, 58, "expert"),
        "expert_down": (2048, 7168, 58, "expert"),
        "shared_gate_up": (7168, 4096, 58, "dense"),
        "shared_down": (2048, 7168, 58, "dense"),
        "gate_up": (7168, 36864, 3, "dense"),
        "down": (18432, 7168, 3, "dense"),
        "lm_head": (7168, 129280, 1, "head"),
    }
    lite = {g.name: (g.k, g.n) for g in gemms(spec_of("deepseek_v2_lite"))}
    assert lite["qkv_a"] == (2048, 16 * 192 + 576)
    assert "q_b" not in lite
    hybrid = {g.name: (g.k, g.n, g.count) for g in gemms(spec_of("qwen3_next_80b"))}
    assert hybrid["qkv"] == (2048, 2 * 4096 + 2 * 512, 12)
    assert hybrid["linear_in"] == (2048, 2048 + 2048 + 4096 + 4096 + 64, 36)
    assert hybrid["linear_out"] == (4096, 2048, 36)
    assert hybrid["shared_gate"] == (2048, 1, 48)


def test_streamed_bytes_of_one_token() -> None:
    # a tied head is read once; four norms a layer and the last are no operands
    gemma = 2 * (9_241_705_984 - 42 * 4 * 3584 - 3584)
    assert float(streamed_bytes(spec_of("gemma2_9b"), 1)) == gemma
    # of the latent models, the experts of one token; scales of fp8 are 4 bytes a 128 x 128
    lite = 2 * (
        102400 * 2048
        + 27 * (2048 * 3072 + 2048 * 576 + 512 * 4096 + 2048 * 2048)
        + 3 * 2048 * 10944
        + 26 * (2048 * 64 + (6 + 2) * 3 * 2048 * 1408)
    )
    assert float(streamed_bytes(spec_of("deepseek_v2_lite"), 1)) == pytest.approx(lite, rel=1e-12)


def test_operations_of_latent_attention() -> None:
    spec = spec_of("deepseek_v3")
    one, two = flops_per_token(spec, [1, 2])
    assert two - one == 61 * 128 * 2 * (192 + 128)  # a product with a key, one with a value
    hybrid = spec_of("qwen3_next_80b")
    one, two = flops_per_token(hybrid, [1, 2])
    assert two - one == 12 * 16 * 4 * 256


def test_fp8_with_block_scales_counts_its_bytes() -> None:
    spec = spec_of("deepseek_v3")
    # a byte each; scales of ceil(rows / 128) x ceil(columns / 128) blocks: 576 rows have 5
    attention = (
        7168 * 1536 + 12 * 56 * 4
        + 1536 * 24576 + 192 * 12 * 4
        + 7168 * 576 + 5 * 56 * 4
        + 512 * 32768 + 256 * 4 * 4
        + 16384 * 7168 + 56 * 128 * 4
    )  # fmt: skip
    expert = 3 * (7168 * 2048 + 16 * 56 * 4)
    dense = 3 * (7168 * 18432 + 144 * 56 * 4)
    # in two bytes: embedding and head, norms, routers; in four: the routers' biases
    wide = 2 * 129280 * 7168 + 61 * (1536 + 512 + 2 * 7168) + 7168 + 58 * 7168 * 256
    total = 61 * attention + 58 * 257 * expert + 3 * dense + 2 * wide + 4 * 58 * 256
    assert weight_bytes(spec) == total == 673_150_611_808
    sizes = {g.name: gemm_bytes(spec, g) for g in gemms(spec)}
    assert sizes["expert_down"] == 7168 * 2048 + 16 * 56 * 4
    assert sizes["router"] == 2 * 7168 * 256
    kept = {"modules_to_not_convert": ["lm_head", "mlp.gate", "self_attn.o_proj"]}
    part = CONFIGS["deepseek_v3"]["quantization_config"] | kept
    more = 61 * (2 * 16384 * 7168 - (16384 * 7168 + 56 * 128 * 4))
    assert weight_bytes(spec_of("deepseek_v3", quantization_config=part)) == total + more


def test_four_bit_formats_count_their_bytes() -> None:
    # MXFP4: half a byte and a byte for 32 of them, experts alone. The hubs report these totals.
    found = load_spec("gpt-oss-20b")
    config = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    packed = from_hf_config(raw(found) | {"quantization_config": config}, "m")
    assert weight_bytes(packed) == 13_761_264_768
    saved = 24 * 32 * 3 * 2880 * 2880
    assert weight_bytes(packed) == weight_bytes(found) - saved * 2 + saved // 2 + saved // 32
    # AWQ and GPTQ of Llama-3-8B in groups of 128: half a byte a weight; a group of a column has a
    # scale of two bytes and a zero point of half a byte; GPTQ an int32 a row beside it.
    spec = load_spec("llama-3-8b")
    weights = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    rest = 2 * (8_030_261_248 - weights)
    awq = rest + weights // 2 + weights // 128 * 5 // 2
    rows = 32 * (3 * 4096 + 4096 + 2 * 4096 + 14336)  # of q, k, v, o, gate, up and down
    for kind, wanted in (("awq", awq), ("gptq", awq + 4 * rows)):
        config = {"quant_method": kind, "bits": 4, "group_size": 128}
        found = from_hf_config(raw(spec) | {"quantization_config": config}, "m")
        assert weight_bytes(found) == wanted
    assert awq == 5_727_854_592
    whole = {"quant_method": "gptq", "bits": 8, "group_size": -1}
    found = from_hf_config(raw(spec) | {"quantization_config": whole}, "m")
    columns = 32 * (6144 + 4096 + 2 * 14336 + 4096)
    assert weight_bytes(found) == rest + weights + columns * 3 + 4 * rows


def raw(spec: ModelSpec) -> dict[str, Any]:
    import json
    from importlib import resources

    return json.loads((resources.files("c2c.models") / "configs" / f"{spec.name}.json").read_text())


@pytest.mark.parametrize("name", ["deepseek_v3", "qwen3_next_80b", "gemma2_9b"])
def test_more_layers_cost_what_a_layer_does(name: str) -> None:
    """Counts are linear in the layers of a kind."""
    step = {"deepseek_v3": 1, "qwen3_next_80b": 4, "gemma2_9b": 2}[name]
    base = CONFIGS[name]["num_hidden_layers"]
    found = [spec_of(name, num_hidden_layers=base + step * i) for i in range(3)]
    for count in (param_count, weight_bytes, state_bytes, kv_bytes_per_token):
        values = np.array([count(spec) for spec in found], dtype=object)
        assert values[2] - values[1] == values[1] - values[0]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank=None: expected a whole number"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq=2: expected 1"),
        ("deepseek_v3", {"n_group": 7}, r"expert_groups=7: expected a divisor of experts \(256\)"),
        ("deepseek_v3", {"n_group": 4, "topk_group": 8}, "groups_per_token=8: expected at most"),
        (
            "deepseek_v3",
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}},
            r"weight_block_size=\[128\]: expected two whole numbers",
        ),
        ("phi4", {"quantization_config": {"quant_method": "awq", "bits": 3}}, "bits=3"),
        ("phi4", {"quantization_config": {"quant_method": "hqq"}}, "quant_method='hqq': expected"),
        (
            "deepseek_v3",
            {
                "quantization_config": {
                    "quant_method": "fp8",
                    "weight_block_size": [128, 128],
                    "modules_to_not_convert": ["model.layers.3.mlp.experts"],
                }
            },
            "mlp.experts.gate_proj of some layers': expected all 58 layers or none",
        ),
        ("qwen3_next_80b", {"linear_num_key_heads": 0}, "linear_num_key_heads=0"),
        ("gemma2_9b", {"attn_logit_softcapping": -1.0}, "attn_logit_softcapping=-1.0"),
        ("granite_8b", {"logits_scaling": 0}, "logits_scaling=0"),
        ("gemma3_4b", {"sliding_window_pattern": 0}, "sliding_window_pattern=0"),
    ],
)
def test_what_is_wrong_is_named(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        spec_of(name, **changes)


@pytest.mark.parametrize(
    ("family", "said"),
    [
        (
            lambda read: {"layer": 4},
            r"own\.layer=4: expected a key that .*Did you mean layers",
        ),
        (lambda read: {"intermediate": 4}, "family own: its fields lack max_position"),
        (lambda read: None, "family own: its fields are None, not a dict"),
        (lambda read: read.wole("x"), r"own: test_families.py, line \d+: AttributeError: .*'wole'"),
        (None, "family own: it is None, not a Family"),
    ],
)
def test_a_wrong_family_is_one_line(
    family: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Family(fields=family) if family else None
    monkeypatch.setitem(FAMILIES, "own", own)  # type: ignore[arg-type]
    config = next(iter(published.CONFIGS.values())) | {"model_type": "own"}
    with pytest.raises((DataError, SettingError), match=said):
        from_hf_config(config, "m")


def test_an_unknown_family_names_the_nearest_and_the_recipe() -> None:
    with pytest.raises(SettingError, match=r"'gemma7'.*gemma4 is nearest.*A model family"):
        spec_of("gemma3_4b", model_type="gemma7")
    assert nearest("longcat", {"kv_lora_rank": 512}) == "deepseek_v3"
    assert nearest(None, {"num_experts": 8}) == "qwen3_moe"
    assert nearest("x", {}) == "llama"


def test_windows_named_by_layer_win() -> None:
    kinds = ["full_attention", *["sliding_attention"] * 41]
    assert spec_of("gemma2_9b", layer_types=kinds).partial_window_layers == 41
    assert spec_of("phi3_mini", sliding_window=2047).sliding_window == 2047
    assert spec_of("olmo2_7b", sliding_window=2047).sliding_window == 0


def test_first_layers_that_are_all_dense_make_a_dense_model() -> None:
    spec = spec_of("deepseek_v3", first_k_dense_replace=61, n_group=8, topk_group=4)
    assert (spec.experts, spec.dense_layers, spec.router_bias) == (0, (), True)
    assert param_count(spec) == param_count(replace(spec, router_bias=False))
