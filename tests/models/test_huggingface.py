"""Reading config.json: both styles, every family, and what is refused."""

import json
import math
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from c2c.errors import DataError, SettingError
from c2c.models import (
    FAMILIES,
    RopeScaling,
    catalog_names,
    from_hf_config,
    gemms,
    load_spec,
)


def raw(name: str) -> dict[str, Any]:
    return json.loads((resources.files("c2c.models") / "configs" / f"{name}.json").read_text())


def test_every_shipped_config_loads_and_families_are_known() -> None:
    found = {load_spec(name).family for name in catalog_names()}
    assert found <= set(FAMILIES)
    assert {"llama", "mixtral", "qwen2", "qwen3_moe", "falcon", "gpt_oss"} <= found


def test_the_two_spellings_of_a_config_give_the_same_spec() -> None:
    old = raw("qwen3-30b-a3b")
    new = dict(old)
    new["rope_parameters"] = {"rope_theta": new.pop("rope_theta"), "rope_type": "default"}
    new["dtype"] = new.pop("torch_dtype")
    new["num_local_experts"] = new.pop("num_experts")
    new.pop("rope_scaling")
    assert from_hf_config(new, "m") == from_hf_config(old, "m")
    nested = dict(new)
    nested["rope_parameters"] = {"full_attention": new["rope_parameters"]}
    assert from_hf_config(nested, "m") == from_hf_config(old, "m")


def test_a_nested_language_model_is_found() -> None:
    flat = raw("qwen2.5-vl-7b")
    top = {"model_type": "qwen2_5_vl", "text_config": {**flat, "model_type": "qwen2_5_vl_text"}}
    nested, plain = from_hf_config(top, "m"), from_hf_config(flat, "m")
    assert nested == plain
    assert plain.qkv_bias


def test_head_dim_may_be_absent_null_or_its_own() -> None:
    config = raw("llama-3-8b")
    for value, wanted in ((None, 128), (64, 64)):
        assert from_hf_config(config | {"head_dim": value}, "m").head_dim == wanted
    assert "head_dim" not in config
    assert from_hf_config(config, "m").head_dim == 128
    with pytest.raises(SettingError, match=r"model.m.num_attention_heads=31: expected a divisor"):
        from_hf_config(config | {"num_attention_heads": 31}, "m")


@pytest.mark.parametrize(
    ("model", "family", "field", "attribute", "value"),
    [
        ("llama-2-7b", "llama", "num_key_value_heads", "kv_heads", 32),  # the heads
        ("llama-2-7b", "glm4", "rms_norm_eps", "norm_eps", 1.5625e-7),
        ("deepseek-v3", "deepseek_v3", "routed_scaling_factor", "routed_scale", 2.5),
        ("deepseek-v3", "deepseek_v3", "n_group", "expert_groups", 8),
        ("deepseek-v3", "deepseek_v3", "topk_group", "groups_per_token", 4),
    ],
)
def test_absent_fields_are_those_of_transformers(
    model: str, family: str, field: str, attribute: str, value: float
) -> None:
    config = {k: v for k, v in raw(model).items() if k != field} | {"model_type": family}
    assert getattr(from_hf_config(config, "m"), attribute) == value


@pytest.mark.parametrize(
    ("changes", "window", "partial"),
    [
        ({}, 0, (0, 0)),  # a number that is switched off
        ({"use_sliding_window": True}, 0, (32768, 4)),  # the last four layers
        ({"use_sliding_window": True, "max_window_layers": 0}, 32768, (0, 0)),
        ({"use_sliding_window": True, "layer_types": ["sliding_attention"] * 32}, 32768, (0, 0)),
        ({"use_sliding_window": True, "layer_types": ["full_attention"] * 32}, 0, (0, 0)),
        ({"use_sliding_window": True, "sliding_window": None}, 0, (0, 0)),
        ({"use_sliding_window": True, "sliding_window": -1}, 0, (0, 0)),
        ({"use_sliding_window": False, "max_window_layers": 0}, 0, (0, 0)),
    ],
)
def test_qwen_windows(changes: dict[str, Any], window: int, partial: tuple[int, int]) -> None:
    spec = from_hf_config(raw("qwen1.5-7b") | changes, "m")
    assert spec.sliding_window == window
    assert (spec.partial_window, spec.partial_window_layers) == partial


def test_windows_of_other_families() -> None:
    mistral = raw("llama-2-7b") | {"model_type": "mistral", "sliding_window": 4096}
    assert from_hf_config(mistral, "m").sliding_window == 4096
    for none in (None, 0, -1):
        assert from_hf_config(mistral | {"sliding_window": none}, "m").sliding_window == 0
    with pytest.raises(SettingError, match=r"sliding_window=-7: expected a whole number"):
        from_hf_config(mistral | {"sliding_window": -7}, "m")
    oss = load_spec("gpt-oss-20b")
    assert (oss.sliding_window, oss.partial_window, oss.partial_window_layers) == (0, 128, 12)


def test_windows_that_transformers_does_not_read() -> None:
    llama = raw("llama-2-7b") | {"sliding_window": 16}
    assert from_hf_config(llama, "m").sliding_window == 0
    absent = raw("llama-2-7b") | {"model_type": "mistral"}
    absent.pop("sliding_window", None)
    assert from_hf_config(absent, "m").sliding_window == 4096  # its default
    moe = raw("qwen3-30b-a3b") | {"use_sliding_window": True, "sliding_window": 16}
    kinds = ["full_attention"] * 48
    assert from_hf_config(moe | {"layer_types": kinds}, "m").sliding_window == 16


def test_layers_without_experts() -> None:
    moe = raw("qwen3-30b-a3b") | {"num_hidden_layers": 6, "num_local_experts": None}
    spec = from_hf_config(moe | {"mlp_only_layers": [4], "decoder_sparse_step": 3}, "m")
    assert spec.dense_layers == (0, 1, 3, 4)
    counts = {gemm.name: gemm.count for gemm in gemms(spec)}
    wanted = {"router": 2, "expert_down": 2, "gate_up": 4, "down": 4, "qkv": 6, "lm_head": 1}
    assert counts.items() >= wanted.items()
    plain = from_hf_config(moe | {"mlp_only_layers": list(range(6))}, "m")
    assert (plain.experts, plain.dense_layers) == (0, ())
    assert from_hf_config(moe | {"num_experts": 0}, "m").experts == 0
    for wrong in ((7,), (1, 0), (0, 0), tuple(range(6))):
        with pytest.raises(SettingError, match="dense_layers"):
            replace(spec, dense_layers=wrong)


def test_rope_scaling_of_every_kind() -> None:
    def scaling(**rope: Any) -> RopeScaling:
        config = raw("llama-3-8b") | {"max_position_embeddings": 4096, "rope_scaling": rope}
        result = from_hf_config(config, "m").rope_scaling
        assert result is not None
        return result

    yarn = scaling(rope_type="yarn", original_max_position_embeddings=1024)
    assert (yarn.factor, yarn.beta_fast, yarn.beta_slow, yarn.truncate) == (4.0, 32, 1, True)
    assert yarn.attention_factor == pytest.approx(1 + 0.1 * math.log(4))
    scales = scaling(rope_type="yarn", factor=4.0, mscale=1.0, mscale_all_dim=0.5)
    assert scales.original_max_position == 4096
    expected = (1 + 0.1 * math.log(4)) / (1 + 0.05 * math.log(4))
    assert scales.attention_factor == pytest.approx(expected)
    assert scaling(type="yarn", factor=4.0, attention_factor=2.0).attention_factor == 2.0
    factors = {"short_factor": [1.0, 2.0], "long_factor": [3, 4.0]}
    long = scaling(rope_type="longrope", original_max_position_embeddings=1024, **factors)
    assert (long.short_factor, long.long_factor) == ((1.0, 2.0), (3.0, 4.0))
    assert long.attention_factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(1024)))
    assert scaling(type="su", original_max_position_embeddings=1024, **factors) == long
    dynamic = scaling(rope_type="dynamic", factor=2.0, original_max_position_embeddings=8)
    assert dynamic.original_max_position == 4096
    config = raw("llama-3-8b") | {"original_max_position_embeddings": 64}
    both = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 128}
    found = from_hf_config(config | {"rope_parameters": both, "rope_scaling": None}, "m")
    assert found.rope_scaling is not None
    assert found.rope_scaling.original_max_position == 64


def test_biases_and_norms_of_the_families() -> None:
    assert load_spec("qwen1.5-7b").qkv_bias
    assert not load_spec("qwen1.5-7b").o_bias  # q, k and v only
    assert not load_spec("llama-3-8b").qkv_bias
    biased = from_hf_config(raw("llama-3-8b") | {"attention_bias": True, "mlp_bias": True}, "m")
    assert biased.qkv_bias
    assert biased.o_bias
    assert biased.mlp_bias
    assert load_spec("qwen3-30b-a3b").qk_norm
    assert not load_spec("mixtral-8x7b").qk_norm


@pytest.mark.parametrize(
    ("dtype", "size"), [("bfloat16", 2), ("torch.float16", 2), ("float32", 4), (None, 2)]
)
def test_the_type_of_the_weights_sets_their_size(dtype: str | None, size: int) -> None:
    assert from_hf_config(raw("llama-3-8b") | {"torch_dtype": dtype}, "m").dtype_bytes == size


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("llama-3-8b", {"model_type": "mamba"}, "model_type"),
        ("llama-3-8b", {"model_type": None}, "model_type"),
        ("llama-3-8b", {"hidden_size": 0}, "hidden_size"),
        ("llama-3-8b", {"hidden_size": 4096.0}, "hidden_size"),
        ("llama-3-8b", {"num_hidden_layers": None}, "num_hidden_layers"),
        ("llama-3-8b", {"num_hidden_layers": True}, "num_hidden_layers"),
        ("llama-3-8b", {"num_key_value_heads": 5}, "kv_heads"),
        ("llama-3-8b", {"torch_dtype": "int4"}, "torch_dtype"),
        ("llama-3-8b", {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ("llama-3-8b", {"rope_theta": -1}, "rope_theta"),
        ("llama-3-8b", {"rms_norm_eps": "small"}, "rms_norm_eps"),
        ("llama-3-8b", {"quantization_config": {"bits": 4}}, "quantization_config.quant_method"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "experts_per_token"),
        ("qwen3-30b-a3b", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ("qwen3-30b-a3b", {"mlp_only_layers": ["0"]}, "mlp_only_layers"),
        ("llama-3-8b", {"rope_scaling": {"type": "longrope"}}, "rope_scaling.short_factor"),
        ("llama-3-8b", {"rope_scaling": ["yarn"]}, "rope_scaling"),
        ("qwen3-30b-a3b", {"num_experts": None}, "num_experts"),
        ("falcon-7b", {"new_decoder_architecture": True}, "new_decoder_architecture"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_what_cannot_be_described_is_refused_by_field(
    name: str, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(SettingError) as err:
        from_hf_config(raw(name) | changes, "mine")
    assert err.value.field == f"model.mine.{field}"


def test_a_path_is_as_good_as_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(raw("yi-6b")), encoding="utf-8")
    for path in (folder, str(folder), folder / "config.json"):
        spec = load_spec(path)
        assert spec.name == "my-model"
        assert spec.hidden == load_spec("yi-6b").hidden
    (folder / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="not JSON"):
        load_spec(folder)
    (folder / "config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(DataError, match="JSON object"):
        load_spec(folder)


def test_an_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r"model='llama-9': expected one of .*llama-3-8b"):
        load_spec("llama-9")
