"""Published packed weights, of eight and four bits, against what their scales make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from c2c.errors import DataError
from c2c.transformer import load
from tests.transformer.random_checkpoints import config_of, tensors_of, write
from tests.transformer.test_forward import prompt

BLOCK = (16, 20)  # columns of 32 and 48 end within one
FP8 = {"quant_method": "fp8", "weight_block_size": list(BLOCK)}


def quantised(tensors: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The matrices of layers but the router in fp8 with scales, and what these are in float32."""
    stored, wide = dict(tensors), dict(tensors)
    for name, values in tensors.items():
        if not name.endswith("proj.weight"):
            continue
        grid = [-(-n // size) for n, size in zip(values.shape, BLOCK, strict=True)]
        scales, packed = np.zeros(grid, np.float32), np.zeros(values.shape, ml_dtypes.float8_e4m3fn)
        wide[name] = np.zeros_like(values)
        for i, j in np.ndindex(*grid):
            at = np.s_[i * BLOCK[0] : (i + 1) * BLOCK[0], j * BLOCK[1] : (j + 1) * BLOCK[1]]
            scales[i, j] = np.abs(values[at]).max() / 448
            packed[at] = (values[at] / scales[i, j]).astype(packed.dtype)
            wide[name][at] = packed[at].astype(np.float32) * scales[i, j]
        stored |= {name: packed, f"{name}_scale_inv": scales}
    return stored, wide


def made(name: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    config = config_of(name, hidden_size=32)
    return config, *quantised(tensors_of(config))


@pytest.mark.parametrize("name", ["qwen3", "glm4_moe"])
def test_logits_are_those_of_the_widened_weights(name: str, tmp_path: Path) -> None:
    config, stored, wide = made(name)
    ids = prompt(1)
    found = load(write(tmp_path / "fp8", config | {"quantization_config": FP8}, stored))
    expected = load(write(tmp_path / "wide", config, wide))
    np.testing.assert_array_equal(found.logits(ids), expected.logits(ids))
    assert found.generate(ids, 5) == expected.generate(ids, 5)
    plain = load(write(tmp_path / "plain", config, tensors_of(config)))
    assert np.abs(found.logits(ids) - plain.logits(ids)).max() > 1e-3


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    config, stored, _ = made("qwen3")
    fp8 = config | {"quantization_config": FP8}
    name = "model.layers.0.self_attn.o_proj.weight"

    def refused(config: dict[str, Any], tensors: dict[str, Any], message: str) -> None:
        with pytest.raises(DataError, match=message):
            load(write(tmp_path / "bad", config, tensors))

    refused(config, stored, "is of type F8_E4M3, expected BF16, F16, F32")
    less = {key: value for key, value in stored.items() if key != f"{name}_scale_inv"}
    refused(fp8, less, f"{name} has scales none, expected")
    other = stored | {f"{name}_scale_inv": np.ones((1, 1), np.float32)}
    refused(fp8, other, rf"{name} has scales F32 \[1, 1\], expected .* F32 \[2, 4\]")
    broken = stored[name].copy()
    broken.view(np.uint8)[0, 0] = 0x7F
    refused(fp8, stored | {name: broken}, f"{name} holds NaN")
    for kind in (
        {"quant_method": "mxfp4"},
        {"quant_method": "modelopt", "quant_algo": "MXFP8"},
        grouped("pack-quantized", INT4 | {"symmetric": False}),
    ):  # fmt: skip
        packed = config | {"quantization_config": kind}
        refused(
            packed,
            tensors_of(config),
            "expected fp8, awq, gptq, or ModelOpt's and compressed-tensors'",
        )


INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 16}
EIGHT = {"num_bits": 8, "type": "float", "strategy": "channel"}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
# the codes of E2M1: a sign, two bits of exponent, one of mantissa
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def grouped(packing: str, weights: dict[str, Any]) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "format": packing, "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}  # fmt: skip


Made = tuple[dict[str, Any], np.ndarray]  # tensors below the module, and the wide matrix


def eight(values: np.ndarray, scales: np.ndarray, kind: Any) -> np.ndarray:
    return (values / scales).round().astype(kind) if kind is np.int8 else (
        (values / scales).astype(kind)
    )  # fmt: skip


def by_tensor(values: np.ndarray) -> Made:
    scale = np.float32(np.abs(values).max() / 448)
    packed = eight(values, scale, ml_dtypes.float8_e4m3fn)
    beside = {"weight": packed, "weight_scale": scale, "input_scale": np.float32(1.0)}
    return beside, packed.astype(np.float32) * scale


def by_row(values: np.ndarray) -> Made:
    scales = (np.abs(values).max(axis=1, keepdims=True) / 448).astype(ml_dtypes.bfloat16)
    packed = eight(values, scales.astype(np.float32), ml_dtypes.float8_e4m3fn)
    wide = packed.astype(np.float32) * scales.astype(np.float32)
    return {"weight": packed, "weight_scale": scales}, wide


def int8(values: np.ndarray) -> Made:
    scales = (np.abs(values).max(axis=1, keepdims=True) / 127).astype(np.float32)
    packed = eight(values, scales, np.int8)
    return {"weight": packed, "weight_scale": scales}, packed * scales


def int4(values: np.ndarray) -> Made:
    """Eight codes an int32, each of its value and eight, the first in the lowest bits."""
    n, k = values.shape
    groups = values.reshape(n, k // 16, 16)
    scales = (np.abs(groups).max(axis=2) / 7).astype(np.float32)
    codes = np.clip(np.round(groups / scales[..., None]), -8, 7).astype(np.int64).reshape(n, k)
    words = np.zeros((n, k // 8), np.int64)
    for i in range(8):
        words |= (codes[:, i::8] + 8) << 4 * i
    packed = words.astype(np.uint32).view(np.int32)
    wide = codes.astype(np.float32) * np.repeat(scales, 16, axis=1)
    beside = {"weight_packed": packed, "weight_scale": scales, "weight_shape": np.array([n, k])}
    return beside, wide


def fp4(values: np.ndarray, name: str, second: str, *, divides: bool) -> Made:
    """Two codes a byte, the first in the low half; scales of groups under one of the matrix."""
    n, k = values.shape
    whole = np.float32(np.abs(values).max() / (6 * 448))
    groups = values.reshape(n, k // 16, 16)
    scales = (np.abs(groups).max(axis=2) / 6 / whole).astype(ml_dtypes.float8_e4m3fn)
    first = np.float32(1 / whole) if divides else whole
    real = scales.astype(np.float32) / first if divides else scales.astype(np.float32) * first
    table = np.array(E2M1, np.float32)
    targets = groups / np.where(real, real, 1)[..., None]
    codes = np.abs(targets[..., None] - table).argmin(axis=-1).reshape(n, k)
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    wide = table[codes] * np.repeat(real, 16, axis=1)
    return {name: packed, "weight_scale": scales, second: first}, wide


@pytest.mark.parametrize(
    ("form", "make"),
    [
        ({"quant_method": "fp8"}, by_tensor),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, by_tensor),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, by_row),
        (grouped("float-quantized", EIGHT), by_row),
        (grouped("int-quantized", EIGHT | {"type": "int"}), int8),
        (grouped("pack-quantized", INT4), int4),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
            lambda values: fp4(values, "weight", "weight_scale_2", divides=False),
        ),
        (
            grouped("nvfp4-pack-quantized", NVFP4),
            lambda values: fp4(values, "weight_packed", "weight_global_scale", divides=True),
        ),
    ],
    ids=["fp8", "modelopt", "modelopt_rows", "ct_float", "ct_int8", "ct_int4", "nvfp4", "ct_nvfp4"],
)
def test_each_packing_is_widened_as_published(
    form: dict[str, Any], make: Any, tmp_path: Path
) -> None:
    config = config_of("qwen3", hidden_size=32, intermediate_size=48)
    stored, wide = dict(tensors_of(config)), dict(tensors_of(config))
    for name in list(stored):
        if name.endswith("proj.weight"):
            beside, wide[name] = make(stored.pop(name).astype(np.float32))
            start = name.removesuffix("weight")
            stored |= {f"{start}{key}": np.asarray(value) for key, value in beside.items()}
    stored["model.layers.0.self_attn.k_proj.k_scale"] = np.ones(1, np.float32)
    ids = prompt(1)
    found = load(write(tmp_path / "packed", config | {"quantization_config": form}, stored))
    expected = load(write(tmp_path / "wide", config, wide))
    np.testing.assert_array_equal(found.logits(ids), expected.logits(ids))
    plain = load(write(tmp_path / "plain", config, tensors_of(config)))
    assert np.abs(found.logits(ids) - plain.logits(ids)).max() > 1e-4


def test_packed_matrices_without_their_scales_are_named(tmp_path: Path) -> None:
    config = config_of("qwen3", hidden_size=32, intermediate_size=48)
    name = "model.layers.0.mlp.down_proj.weight"
    nvfp4 = config | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    beside, _ = fp4(tensors_of(config)[name], "weight", "weight_scale_2", divides=False)
    for missing, message in (
        ("weight_scale_2", "expected weight_scale_2 or weight_global_scale"),
        ("weight_scale", "has scales F32.*expected weight_scale, or weight_scale_inv"),
    ):
        some = {f"{name.removesuffix('weight')}{key}": np.asarray(value)
                for key, value in beside.items() if key != missing}  # fmt: skip
        with pytest.raises(DataError, match=message):
            load(write(tmp_path / missing, nvfp4, tensors_of(config) | some))
