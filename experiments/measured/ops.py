"""Measured operations: rows, shape columns, size classes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from experiments.measured.predict import (
    LAYER_GEMMS,
    decode_us,
    elementwise_us,
    experts_us,
    gemm_us,
    layer_gemm_us,
    moe_us,
    prefill_us,
)
from experiments.measured.rows import Rows

__all__ = ["OPS", "Op", "is_held_out", "op_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One kind of measured call.

    Attributes:
      shape: columns of a shape, fitted or held out as a whole.
      predict: returns microseconds, in NumPy or jax.numpy.
      classes: returns each row's size class.
      is_bound: returns rows with error bound.
      keep: returns own rows.
      kernel: precision of `conf/kernels`; "": the calibration.
    """

    name: str
    file: str
    chip_column: str
    measured: str
    shape: tuple[str, ...]
    predict: Callable[..., np.ndarray]
    classes: Callable[[Rows], np.ndarray]
    is_bound: Callable[[Rows], np.ndarray]
    keep: Callable[[Rows], np.ndarray] = lambda rows: np.ones(len(rows), bool)
    kernel: str = ""
    operand_bytes: float = 2


def _cut(values: np.ndarray, edges: Mapping[float, str], rest: str) -> np.ndarray:
    return np.array([next((n for e, n in edges.items() if v <= e), rest) for v in values], object)


def _gemm_classes(rows: Rows) -> np.ndarray:
    small = 2.0 * rows["n"] * rows["k"] < 16e6
    by_m = _cut(rows["m"], {16: "M 1-16", 64: "M 17-64", 256: "M 65-256", 1024: "M 257-1024"},
                "M > 1024")  # fmt: skip
    return np.where(small, "W < 16 MB", by_m)


def _attention_classes(rows: Rows) -> np.ndarray:
    return np.where(rows["us"] > 30.0, "above 30 us", "up to 30 us").astype(object)


def _moe_classes(rows: Rows) -> np.ndarray:
    return _cut(rows["tokens"], {128: "1-128 tokens", 1024: "129-1024 tokens"}, "> 1024 tokens")


def _token_classes(rows: Rows) -> np.ndarray:
    return _cut(rows["tokens"], {64: "1-64 tokens", 512: "65-512 tokens"}, "> 512 tokens")


def _all(rows: Rows) -> np.ndarray:
    return np.ones(len(rows), bool)


def _none(rows: Rows) -> np.ndarray:
    return np.zeros(len(rows), bool)


def _layer(which: str) -> Op:
    return Op(
        name=f"layer {which}", file="vidur_layer_us", chip_column="device", measured=which,
        shape=("model", "tokens"), predict=lambda rows, chip: layer_gemm_us(rows, which, chip),
        classes=_token_classes, is_bound=_none,
    )  # fmt: skip


LARGE_M: Final = 256  # rows of a narrow GEMM from which computing binds
# Kernel, bytes of an operand and of a stored weight with its scales, by the rows' names.
_NARROW: Final = {
    "fp8": ("fp8", 1.0, 1.0), "fp8_block": ("fp8_block", 1.0, 1.0 + 4 / 128**2),
    "nvfp4": ("nvfp4", 0.5, 0.5 + 1 / 16), "w4a16_mxfp4": ("mxfp4", 2.0, 0.5 + 1 / 32),
    "w4a8_mxfp4_mxfp8": ("mxfp4", 1.0, 0.5 + 1 / 32), "int4_wo": ("int4", 2.0, 0.5 + 2 / 128),
}  # fmt: skip


def _narrow(kind: str, dtype: str) -> Op:
    kernel, operand, stored = _NARROW[dtype]
    is_gemm = kind == "gemm"
    predict = partial(
        gemm_us if is_gemm else experts_us, element_bytes=operand, stored=stored
    )  # fmt: skip
    return Op(
        name=f"{kind} {dtype}", file=f"{kind}_narrow", chip_column="system", measured="us",
        shape=("n", "k") if is_gemm else ("hidden", "inter", "topk", "experts", "tokens"),
        predict=predict, classes=_gemm_classes if is_gemm else _moe_classes,
        is_bound=(lambda rows: rows["m"] > LARGE_M) if is_gemm else _none,
        keep=lambda rows: rows["dtype"] == dtype, kernel=kernel, operand_bytes=operand,
    )  # fmt: skip


OPS: Final = (
    Op(
        name="gemm", file="gemm_bf16", chip_column="system", measured="us", shape=("n", "k"),
        predict=gemm_us, classes=_gemm_classes,
        is_bound=lambda rows: 2.0 * rows["n"] * rows["k"] >= 16e6,
    ),
    Op(
        name="prefill attention", file="attention_bf16", chip_column="system", measured="us",
        shape=("kind", "batch", "tokens", "heads", "kv_heads"), predict=prefill_us,
        classes=_attention_classes, is_bound=lambda rows: rows["us"] > 30.0,
        keep=lambda rows: rows["kind"] == "context",
    ),
    Op(
        name="decode attention", file="attention_bf16", chip_column="system", measured="us",
        shape=("kind", "batch", "tokens", "heads", "kv_heads"), predict=decode_us,
        classes=_attention_classes, is_bound=lambda rows: rows["us"] > 30.0,
        keep=lambda rows: rows["kind"] == "generation",
    ),
    Op(
        name="moe", file="moe_bf16", chip_column="system", measured="us",
        shape=("model", "distribution", "tokens"), predict=moe_us, classes=_moe_classes,
        is_bound=_all,
    ),
    *(_narrow("gemm", dtype) for dtype in ("fp8", "fp8_block", "nvfp4")),
    *(_narrow("moe", dtype) for dtype in _NARROW),
    *(_layer(which) for which in LAYER_GEMMS),
    Op(
        name="layer elementwise", file="vidur_layer_us", chip_column="device",
        measured="elementwise", shape=("model", "tokens"), predict=elementwise_us,
        classes=_token_classes, is_bound=_none,
    ),
)  # fmt: skip
"""All operations, in the order of the tables."""


def is_held_out(key: str) -> bool:
    """Return whether the rows of a shape are held out of every fit: about half, by a digest.

    >>> is_held_out("4096,4096"), is_held_out("4096,5120")
    (True, False)
    """
    return hashlib.sha256(key.encode()).digest()[0] % 2 == 1


def op_rows(tables: Mapping[str, Rows]) -> Iterator[tuple[Op, str, Rows]]:
    """Yield operations with a chip's rows and its name."""
    for op in OPS:
        if op.file not in tables:
            continue
        rows = tables[op.file]
        rows = rows.take(op.keep(rows))
        for system in sorted(set(rows[op.chip_column])):
            yield op, system, rows.take(rows[op.chip_column] == system)
