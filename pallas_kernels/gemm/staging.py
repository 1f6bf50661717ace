"""Staging: W in pieces by copy engine."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.gemm.heuristics import choice
from pallas_kernels.gemm.layout import row_major
from pallas_kernels.gemm.machine import Machine
from pallas_kernels.gemm.prediction import MARGIN
from pallas_kernels.gemm.specs import Gemm
from pallas_kernels.host_memory import dlpack, in_host_memory

Reader = Literal["auto", "sms", "copy_engine"]
"""Part of the GPU that reads W: SMs in the kernel, or the copy engine into device memory."""

READERS: Final = get_args(Reader)
MOST_PIECES: Final = 8
SLOTS: Final = 2
"""Pieces in device memory at a time."""
_LEAST_PIECE_BYTES: Final = 2 * 2**20  # below, the start of a copy shows


def weight_bytes(gemm: Gemm) -> int:
    """Return one matrix W's bytes."""
    return gemm.k * gemm.n * gemm.w_bits // 8


def pieces(gemm: Gemm) -> int:
    """Count equal pieces of W: 8, or fewer."""
    rows = gemm.w_shape[0 if gemm.layers is None else 1]
    return next(
        p for p in (MOST_PIECES, 4, 2, 1)
        if p == 1 or (rows % p == 0 and weight_bytes(gemm) / p >= _LEAST_PIECE_BYTES)
    )  # fmt: skip


def staged_s(gemm: Gemm, machine: Machine) -> float:
    """Return the predicted seconds of `staged_matmul`, copies beside products."""
    count, sums = pieces(gemm), 4 * gemm.m * gemm.n
    moved = 2 * weight_bytes(gemm) + gemm.in_itemsize * gemm.m * gemm.k
    moved += 2 * count * sums if gemm.w_layout == "kn" else sums
    copy_s = weight_bytes(gemm) / ((machine.copy_gbps or machine.link_gbps) * 1e9)
    product_s = max(
        2.0 * gemm.m * gemm.k * gemm.n / (machine.bf16_tflops * 1e12),
        moved / (machine.hbm_gbps * 1e9),
    )
    first_and_last_s = min(copy_s, product_s) / count
    return max(copy_s, product_s) + first_and_last_s + count * machine.launch_s


def reader_of(gemm: Gemm, machine: Machine) -> Reader:
    """Return the faster reader of W, SMs if about equal."""
    in_kernel_s = choice(gemm, machine).time_s
    return "copy_engine" if staged_s(gemm, machine) < (1 - MARGIN) * in_kernel_s else "sms"


def staged_matmul(x: jax.Array, w: jax.Array, layer: int, *, gemm: Gemm, columns: int) -> jax.Array:
    """Return x @ w of type `gemm.out_dtype` by copies of pieces of W, outside `jit`."""
    device = w.sharding.with_memory_kind("device")
    x = jnp.pad(x, ((0, 0), (0, gemm.k - x.shape[1])))
    parts: list[jax.Array] = []
    for number, part in enumerate(_views(w, layer, gemm)):
        if number >= SLOTS:  # a piece's memory is free when its product is done
            parts[number - SLOTS].block_until_ready()
        piece = jax.device_put(part, device)
        parts.append(_product(x, piece, jnp.int32(number), w_layout=gemm.w_layout))
    out: jax.Array = _joined(parts, w_layout=gemm.w_layout, columns=columns, dtype=gemm.out_dtype)
    return out


def _views(w: jax.Array, layer: int, gemm: Gemm) -> list[jax.Array]:
    count, sizes = pieces(gemm), list(gemm.w_shape[-2 if gemm.w_layout != "tiles" else -4 :])
    sizes[0] //= count
    nbytes = weight_bytes(gemm) // count
    first = w.unsafe_buffer_pointer() + layer * weight_bytes(gemm)
    device: Any = next(iter(w.sharding.device_set))
    on_gpu = device.platform == "gpu"
    kind = (dlpack.CUDA_HOST if in_host_memory(w) else dlpack.CUDA) if on_gpu else dlpack.CPU
    result = []
    for number in range(count):
        memory = (ctypes.c_uint8 * nbytes).from_address(first + number * nbytes)
        memory.owner = w  # type: ignore[attr-defined]  # lives as long as its views
        view = np.frombuffer(memory, np.dtype(w.dtype)).reshape(sizes)
        exported = dlpack.Exported(view, kind, device.local_hardware_id or 0)
        result.append(jax.dlpack.from_dlpack(exported, copy=False))
    return result


@functools.partial(jax.jit, static_argnames=("w_layout",))
def _product(x: jax.Array, piece: jax.Array, number: jax.Array, *, w_layout: str) -> jax.Array:
    if w_layout == "kn":
        x = lax.dynamic_slice_in_dim(x, number * piece.shape[0], piece.shape[0], axis=1)
    else:
        piece = row_major(piece) if w_layout == "tiles" else piece
    contracted = ((1,), (0 if w_layout == "kn" else 1,))
    return lax.dot_general(x, piece, (contracted, ((), ())), preferred_element_type=jnp.float32)


@functools.partial(jax.jit, static_argnames=("w_layout", "columns", "dtype"))
def _joined(parts: Sequence[jax.Array], *, w_layout: str, columns: int, dtype: str) -> jax.Array:
    whole = sum(parts[1:], parts[0]) if w_layout == "kn" else jnp.concatenate(parts, axis=1)
    return whole[:, :columns].astype(dtype)
