"""Published weights of eight bits with scales of blocks, against what the scales make of them."""

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
        {"quant_method": "mxfp4"}, {"quant_method": "awq", "bits": 4, "group_size": 32},
        {"quant_method": "fp8"}, {"quant_method": "modelopt", "quant_algo": "FP8"},
    ):  # fmt: skip
        packed = config | {"quantization_config": kind}
        refused(packed, tensors_of(config), "expected fp8 with weight_block_size, or none. For 4-b")
