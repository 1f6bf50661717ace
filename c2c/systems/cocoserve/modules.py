"""Modules of a model's layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from c2c.errors import SettingError, unknown_name
from c2c.models import (
    ModelSpec,
    check_plain_layers,
    gemms,
    kv_bytes_per_token,
    param_count,
    weight_bytes,
)

__all__ = [
    "BLOCK_BYTES",
    "KV",
    "LAYER",
    "Module",
    "kv_bytes",
    "layer_bytes",
    "module_of",
    "modules",
    "sizes",
]

KV: Final = "kv"
LAYER: Final = "layer"
BLOCK_BYTES: Final = 2 << 20
"""Block of a framework's allocator; large tensors take whole blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """`count` equal weight matrices [k, n]; a token uses `taken`."""

    k: int
    n: int
    count: int = 1
    taken: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A part of a layer: weights without norms, and the attention's size.

    Attributes:
      name: attention, feed_forward, layer, kv, or a projection.
      scores: heads x head size with attention; else 0.
    """

    name: str
    matrices: tuple[Matrix, ...]
    element_bytes: int
    scores: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the module's weights."""
        return sum(m.k * m.n * m.count for m in self.matrices) * self.element_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the allocator's blocks for the module's matrices."""
        pairs = ((m.k * m.n * self.element_bytes, m.count) for m in self.matrices)
        return sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES * count for size, count in pairs)

    def flops(self, tokens: int) -> int:
        """Return a prompt's operations by its tokens, all pairs scored."""
        products = 2 * tokens * sum(m.k * m.n * m.taken for m in self.matrices)
        return products + 4 * tokens * tokens * self.scores


def modules(spec: ModelSpec) -> Mapping[str, Module]:
    """Return a layer's modules by name; all but `kv` have weights.

    Raises:
      SettingError: unlike layers or unknown parts.
    """
    check_plain_layers(spec)
    if spec.dense_layers:
        raise SettingError(
            f"model.{spec.name}.dense_layers", list(spec.dense_layers), "none: layers must be alike"
        )
    q, kv, h = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.hidden
    attention = {
        "q": Matrix(k=h, n=q), "k": Matrix(k=h, n=kv), "v": Matrix(k=h, n=kv),
        "o": Matrix(k=q, n=h),
    }  # fmt: skip
    block: dict[str, Matrix] = {}
    for gemm in gemms(spec):
        if gemm.kind == "head" or gemm.name in ("qkv", "o"):
            continue
        is_expert = gemm.kind == "expert"
        count, taken = (spec.experts, spec.experts_per_token) if is_expert else (1, 1)
        if gemm.name.endswith("gate_up"):
            half = Matrix(k=gemm.k, n=gemm.n // 2, count=count, taken=taken)
            start = gemm.name.removesuffix("gate_up")
            block |= {f"{start}gate": half, f"{start}up": half}
        else:
            block[gemm.name] = Matrix(k=gemm.k, n=gemm.n, count=count, taken=taken)
    named = {
        **{name: (matrix,) for name, matrix in {**attention, **block}.items()},
        "attention": tuple(attention.values()),
        "feed_forward": tuple(block.values()),
        LAYER: (*attention.values(), *block.values()),
        KV: (),
    }
    return {
        name: Module(
            name=name, matrices=matrices, element_bytes=spec.dtype_bytes,
            scores=q if name in ("attention", LAYER) else 0,
        )
        for name, matrices in named.items()
    }  # fmt: skip


def module_of(spec: ModelSpec, name: str) -> Module:
    """Return a module of a model's layer by name.

    Raises:
      SettingError: an unknown name.
    """
    catalog = modules(spec)
    if name not in catalog:
        raise unknown_name("module", name, catalog)
    return catalog[name]


def sizes(spec: ModelSpec, kv_tokens: int = 0) -> dict[str, float]:
    """Return each module's bytes, with its KV, on a target."""
    kv = kv_bytes(spec, kv_tokens)
    with_kv = ("attention", LAYER, KV)
    return {
        name: module.allocated_bytes + (kv if name in with_kv else 0)
        for name, module in modules(spec).items()
    }


def kv_bytes(spec: ModelSpec, tokens: int = 1) -> int:
    """Return the KV bytes of so many tokens in one layer."""
    return tokens * kv_bytes_per_token(spec) // spec.layers


def layer_bytes(spec: ModelSpec) -> tuple[int, int]:
    """Return a layer's bytes, and those outside layers."""
    plain = replace(
        spec, layers=1, partial_window=0, partial_window_layers=0, window_layers=(), dense_layers=()
    )
    size = (param_count(replace(plain, layers=2)) - param_count(plain)) * spec.dtype_bytes
    return size, weight_bytes(plain) - size
