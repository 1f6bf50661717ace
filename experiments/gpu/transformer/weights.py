"""Models of real shape without a checkpoint: random weights made at the speed of copying.

A block of random numbers is drawn once and repeated, from another offset for each matrix, so that
no two matrices are equal. Zeros would draw less power, and run faster, than a model's numbers. A
matrix has the same values in a stack or alone, in host or device memory, so that strategies can be
compared value for value.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from c2c.models import ModelSpec, load_spec
from c2c.transformer import Linear, Params, Quantization
from c2c.transformer.weights.checkpoint import abstract_params
from experiments.gpu.cases import Place, Scale
from pallas_kernels.host_memory import HostArray
from pallas_kernels.quantized_gemm import QuantizedWeights

MODEL = "llama-3-8b"
"""Name of the shape of Llama 3 and 3.1 8B."""

QUANTIZATIONS = {
    "bf16": None,
    "int8": Quantization(kind="int8"),
    "int4": Quantization(kind="int4", group=32, scale_dtype="bfloat16"),
}

_BLOCK = (1 << 25) - 39  # prime, so that rows of a matrix do not begin at the same few offsets
_INTEGER_STD = {"int8": 73.6, "int4": 4.6}  # of uniform integers


def shape_of(scale: Scale) -> ModelSpec:
    """Return the spec of the measured model; a tiny one of the same family in a dry run."""
    spec = load_spec(MODEL)
    if scale != "tiny":
        return spec
    return replace(
        spec, layers=2, hidden=128, heads=4, kv_heads=2, head_dim=32, intermediate=192, vocab=320
    )


def random_weights(
    spec: ModelSpec, linear: Linear, weights: str = "bf16", *, seed: int, place: Place = "host"
) -> Params:
    """Return random bf16 parameters, with projections quantised by `weights`.

    Args:
      spec: spec of the model, without tied embeddings.
      linear: strategy, which sets the memory of each parameter.
      weights: one of `QUANTIZATIONS`.
      seed: seed of the values.
      place: "device" replaces host memory by device memory.

    Raises:
      ValueError: the model has tied embeddings.
    """
    if spec.tie_embeddings:
        raise ValueError(f"spec={spec.name}: expected a model whose embedding is not tied")
    blocks, scratch = _Blocks(seed), _Scratch(place)
    like = abstract_params(
        spec, dtype="bfloat16", placement=linear.placement, quantization=QUANTIZATIONS[weights]
    )

    def made(path: Any, leaf: Any) -> Any:
        name, layer = _named(path)
        if not isinstance(leaf, QuantizedWeights):
            return _filled(leaf, functools.partial(blocks.floats, name), layer, scratch)
        spread = _INTEGER_STD[leaf.kind]

        def scales(at: int, of: np.ndarray) -> None:
            values = blocks.draw(f"{name} scales", at, of.size).reshape(of.shape)
            of[...] = (leaf.k**-0.5 / spread) * np.exp(np.float32(0.1) * values)

        return replace(
            leaf,
            data=_filled(leaf.data, functools.partial(blocks.integers, name), layer, scratch),
            scales=_filled(leaf.scales, scales, layer, scratch),
        )

    params: Params = jax.tree_util.tree_map_with_path(
        made, like, is_leaf=lambda leaf: isinstance(leaf, HostArray | QuantizedWeights)
    )
    return params


def projection_bytes(params: Params) -> int:
    """Return the bytes of all projections, scales included."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(dict(params.projections)))


class _Blocks:
    """Random blocks that all weights are copied from."""

    _scaled: tuple[float, np.dtype[Any], np.ndarray]  # factor, type, block as bytes

    def __init__(self, seed: int) -> None:
        self._lock = threading.Lock()
        self.seed = seed
        rng = np.random.default_rng(seed)
        # Few enough to draw at once; blocks repeat them.
        self._drawn = rng.standard_normal((1 << 21) - 9, np.float32)
        # -128 is left out: symmetric quantisation has no such number.
        self._bytes = np.resize(rng.integers(-127, 128, (1 << 23) - 15, np.int8), _BLOCK)
        self._scaled = (0.0, np.dtype(np.float32), self._bytes)

    def draw(self, name: str, at: int, count: int) -> np.ndarray:
        """Return a matrix's `count` normal numbers, as float32."""
        out = np.empty(count, np.float32)
        self._tile(self._drawn.view(np.uint8), name, at, out.view(np.uint8), 4)
        return out

    def floats(self, name: str, at: int, into: np.ndarray) -> None:
        """Fill a matrix with normal numbers scaled by 1 / sqrt(K), a norm with numbers near 1."""
        if "norm" in name:
            values = self.draw(name, at, into.size)
            into[...] = np.exp(np.float32(0.2) * values).reshape(into.shape)
            return
        factor = into.shape[-1] ** -0.5
        with self._lock:
            if self._scaled[:2] != (factor, into.dtype):
                scaled = (self._drawn * np.float32(factor)).astype(into.dtype)
                # As bytes: NumPy copies types that are not its own number by number.
                block = np.resize(scaled.view(np.uint8), _BLOCK * into.itemsize)
                self._scaled = factor, into.dtype, block
            block = self._scaled[2]
        self._tile(block, name, at, into.reshape(-1).view(np.uint8), into.itemsize)

    def integers(self, name: str, at: int, into: np.ndarray) -> None:
        """Fill a matrix with bytes: integers of 8 bits, or pairs of 4."""
        self._tile(self._bytes, name, at, into.reshape(-1).view(np.int8), 1)

    def _tile(self, block: np.ndarray, name: str, at: int, into: np.ndarray, item: int) -> None:
        """Repeat a block, from an offset that depends on the matrix."""
        first = zlib.crc32(f"{name}/{at}/{self.seed}".encode()) % (len(block) // item) * item
        done = 0
        while done < len(into):
            size = min(len(block) - first, len(into) - done)
            into[done : done + size] = block[first : first + size]
            done, first = done + size, 0


def _named(path: Any) -> tuple[str, int | None]:
    """Return a leaf's name without its layer, and the layer, None if it has none."""
    parts = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
    layer = next((int(part) for part in parts if part.isdecimal()), None)
    return "/".join(p for p in parts if p != "data" and not p.isdecimal()), layer


class _Scratch:
    """Buffer that arrays are filled in before they are placed: new pages cost more."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._pages = np.empty(0, np.uint8)

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an array of this shape, which invalidates the one before."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        # jax on a CPU may use the pages without a copy: they must not be filled again.
        if nbytes > len(self._pages) or jax.default_backend() == "cpu":
            self._pages = np.empty(0, np.uint8)
            self._pages = np.empty(nbytes, np.uint8)
        array: np.ndarray = self._pages[:nbytes].view(dtype).reshape(shape)
        return array


def _filled(
    leaf: Any, fill: Callable[[int, np.ndarray], None], layer: int | None, scratch: _Scratch
) -> Any:
    """Return an array like `leaf`, in its memory; the layers of a stack are filled in parallel."""
    host = isinstance(leaf, HostArray)
    like = leaf.data if host else leaf
    array = scratch.array(like.shape, np.dtype(like.dtype))
    if layer is None and array.ndim == 3:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(fill, range(len(array)), array))
    else:
        fill(0 if layer is None else layer, array)
    device = jax.devices()[0]
    kind = "pinned_host" if host and scratch.place == "host" else device.default_memory().kind
    sharding = jax.sharding.SingleDeviceSharding(device, memory_kind=kind)
    placed = jax.device_put(array, sharding)
    placed.block_until_ready()  # the buffer is reused after this
    return HostArray(placed) if host else placed
