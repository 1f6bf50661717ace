"""Precisions by name, and as published checkpoints have them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from c2c.errors import SettingError
from c2c.models import (
    PRECISIONS,
    at_precision,
    kv_bytes_per_token,
    load_spec,
    param_count,
    weight_bytes,
)

CONFIG = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}


def group(weights: Mapping[str, Any], inputs: Any) -> dict[str, Any]:
    return {"targets": ["Linear"], "weights": weights, "input_activations": inputs}


def folder(place: Path, quantisation: Mapping[str, Any], beside: Any = None) -> Path:
    config = CONFIG | ({"quantization_config": quantisation} if quantisation else {})
    (place / "config.json").write_text(json.dumps(config))
    if beside:
        (place / "hf_quant_config.json").write_text(json.dumps(beside))
    return place


@pytest.mark.parametrize(
    ("quantisation", "beside", "kernel", "bits", "cached"),
    [
        ({}, {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}, "fp8", 8, 1),
        ({}, {"quantization": {"quant_algo": "NVFP4", "group_size": 16}}, "nvfp4", 4, 0),
        ({"quant_algo": "FP8", "kv_cache_scheme": "FP8"}, None, "fp8", 8, 1),  # no quant_method
        ({"quant_method": "fp8"}, None, "fp8", 8, 0),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, None, "fp8_block", 8, 0),
        ({"quant_method": "compressed-tensors", "format": "float-quantized",
          "config_groups": {"group_0": group(FLOAT8, FLOAT8)}}, None, "fp8", 8, 0),
        ({"quant_method": "compressed-tensors", "format": "float-quantized",
          "config_groups": {"group_0": group(FLOAT8, None)}}, None, "bf16", 8, 0),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, None, "int4", 4, 0),
    ],
)  # fmt: skip
def test_a_checkpoint_says_its_precision(
    quantisation: Mapping[str, Any], beside: Any, kernel: str, bits: int, cached: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    spec = load_spec(folder(tmp_path, quantisation, beside))
    assert spec.weights is not None
    assert (spec.weights.kernel, spec.weights.bits, spec.kv_dtype_bytes) == (kernel, bits, cached)


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_precision_replaces_a_checkpoints(name: str, tmp_path: Path) -> None:
    moe = load_spec("gpt-oss-120b")
    dense = load_spec(folder(tmp_path, {"quant_method": "fp8"}))
    for spec in (moe,) if name == "mxfp4" else (moe, dense):
        one = at_precision(spec, name)
        assert param_count(one) == param_count(spec)
        assert at_precision(one, name) == one
        bits = 16 if one.weights is None else one.weights.bits
        least = param_count(one) * bits / 8
        assert least <= weight_bytes(one) <= 2 * param_count(one)
        assert at_precision(one, "bf16").weights is None


def test_published_sizes() -> None:
    # the sizes of the safetensors of openai/gpt-oss-120b and nvidia/DeepSeek-R1-NVFP4, in 1e9 bytes
    assert weight_bytes(load_spec("gpt-oss-120b")) / 1e9 == pytest.approx(65.2, rel=0.01)
    nvfp4 = at_precision(load_spec("deepseek-v3"), "nvfp4")
    assert weight_bytes(nvfp4) / 1e9 == pytest.approx(386.0, rel=0.05)


def test_each_part_can_be_set_by_name(tmp_path: Path) -> None:
    spec = load_spec(folder(tmp_path, {}))
    one = at_precision(spec, {"weights": "fp8", "compute": "bf16", "cache": "bf16"})
    assert one.weights is not None
    assert one.weights.kernel == "bf16"
    assert kv_bytes_per_token(one) == kv_bytes_per_token(spec)
    assert kv_bytes_per_token(at_precision(spec, {"cache": "fp8"})) * 2 == kv_bytes_per_token(spec)
    demanded = at_precision(spec, {"weights": "fp8", "compute": "fp8"})
    assert demanded.weights is not None
    assert demanded.weights.is_demanded


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("fp9", "precision='fp9': expected one of bf16, fp8"),
        (8, "a name, or a mapping with weights, compute, cache"),
        ({}, "a name, or a mapping"),
        ({"weight": "fp8"}, "precision.weight="),
        ({"weights": "fp8", "compute": "nvfp4"}, "precision.compute='nvfp4': expected bf16 or fp8"),
        ({"compute": "fp8"}, "precision.compute='fp8': expected bf16"),
        ({"cache": "int2"}, "precision.cache='int2'"),
        ("mxfp4", "has no experts"),
    ],
)
def test_wrong_precisions_are_refused(given: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        at_precision(load_spec(folder(tmp_path, {})), given)
    assert said in str(caught.value)
