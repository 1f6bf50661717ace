"""AWQ's and GPTQ's packed integers against loops over their published layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c2c.errors import DataError
from c2c.transformer import load
from tests.transformer.random_checkpoints import config_of, tensors_of, write
from tests.transformer.test_forward import prompt

GROUP = 16
Packed = tuple[dict[str, np.ndarray], np.ndarray]


def coded(w: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes [K, N], zero points and scales [groups, N] of a matrix [N, K]."""
    k = w.shape[1]
    parts = w.T.reshape(k // GROUP, GROUP, -1)
    low, high = parts.min(1), parts.max(1)
    scales = np.ascontiguousarray((high - low) / (2**bits - 1)).astype(np.float16, order="C")
    zeros = np.clip(np.round(-low / scales), 0, 2**bits - 1).astype(np.int64)
    codes = np.round(parts / scales[:, None]) + zeros[:, None]
    return np.clip(codes, 0, 2**bits - 1).astype(np.int64).reshape(k, -1), zeros, scales


def packed(codes: np.ndarray, order: list[int], bits: int) -> np.ndarray:
    """Pack columns: code `order[j]` of eight at the j-th place from the lowest bits."""
    each = 32 // bits
    out = np.zeros((codes.shape[0], codes.shape[1] // each), np.int64)
    for row, column in np.ndindex(*out.shape):
        for j in range(each):
            out[row, column] |= int(codes[row, column * each + order[j]]) << (bits * j)
    return out.astype(np.uint32).view(np.int32)


def widened(codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return [N, K]: float16 products of codes less zero points, and scales."""
    wide = (codes - zeros[at]).astype(np.float16) * scales[at]
    return np.ascontiguousarray(wide.T.astype(np.float32))


def awq(w: np.ndarray, bits: int) -> Packed:
    codes, zeros, scales = coded(w, bits)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    ends = {"qweight": packed(codes, order, 4), "qzeros": packed(zeros, order, 4),
            "scales": scales}  # fmt: skip
    return ends, widened(codes, zeros, scales, np.arange(w.shape[1]) // GROUP)


def gptq(w: np.ndarray, bits: int) -> Packed:
    """Pack inputs in an order of their own, as after `desc_act`."""
    order, at = list(range(32 // bits)), np.arange(w.shape[1]) // GROUP
    shuffle = np.random.default_rng(0).permutation(w.shape[1])
    codes, zeros, scales = coded(w[:, shuffle], bits)
    codes, at = codes[np.argsort(shuffle)], at[np.argsort(shuffle)]
    stored = (zeros - 1) & (2**bits - 1)
    ends = {"qweight": np.ascontiguousarray(packed(codes.T, order, bits).T),
            "qzeros": packed(stored, order, bits), "scales": scales,
            "g_idx": at.astype(np.int32)}  # fmt: skip
    return ends, widened(codes, zeros, scales, at)


def quantised(
    tensors: dict[str, Any], pack: Callable[[np.ndarray, int], Packed], bits: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    stored, wide = dict(tensors), dict(tensors)
    for name, values in tensors.items():
        if name.endswith("proj.weight"):
            del stored[name]
            ends, wide[name] = pack(values, bits)
            stored |= {f"{name.removesuffix('.weight')}.{end}": a for end, a in ends.items()}
    return stored, wide


@pytest.mark.parametrize(("pack", "bits"), [(awq, 4), (gptq, 4), (gptq, 8)])
def test_logits_are_those_of_the_widened_weights(
    pack: Callable[[np.ndarray, int], Packed], bits: int, tmp_path: Path
) -> None:
    config = config_of("qwen3")
    stored, wide = quantised(tensors_of(config), pack, bits)
    told = {"quant_method": pack.__name__, "bits": bits, "group_size": GROUP, "desc_act": True}
    found = load(write(tmp_path / "packed", config | {"quantization_config": told}, stored))
    expected = load(write(tmp_path / "wide", config, wide))
    np.testing.assert_array_equal(found.logits(prompt(1)), expected.logits(prompt(1)))
    plain = load(write(tmp_path / "plain", config, tensors_of(config)))
    assert np.abs(found.logits(prompt(1)) - plain.logits(prompt(1))).max() > 1e-4
    name = "model.layers.0.self_attn.o_proj.weight"
    assert np.abs(wide[name] - tensors_of(config)[name]).max() < 0.1


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    config = config_of("qwen3")
    stored, _ = quantised(tensors_of(config), awq, 4)
    told = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
    name = "model.layers.0.self_attn.o_proj"
    for more, tensors, message in (
        ({"version": "gemv"}, stored, r"quantization_config\.version='gemv': expected 'gemm'"),
        ({}, {n: t for n, t in stored.items() if n != f"{name}.qzeros"}, "qweight without"),
        ({}, stored | {f"{name}.scales": np.ones((3, 32), np.float16)}, "does not fit qweight"),
    ):
        with pytest.raises(DataError, match=message):
            load(write(tmp_path / "bad", config | {"quantization_config": told | more}, tensors))
