"""Strategies for projections: weight placement and matrix multiplication."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from c2c.errors import SettingError
from c2c.transformer.layers.embedding import widen
from c2c.transformer.layers.grouped_gemm import grouped_matmul
from c2c.transformer.layers.params import Placement, Projections, Transposed
from pallas_kernels.arguments import Choice, resolve_backend
from pallas_kernels.gather_rows import gather_rows
from pallas_kernels.grouped_gemm import grouped_gemm
from pallas_kernels.host_memory import HostArray
from pallas_kernels.hybrid_gemm import PackedWeights, hybrid_gemm
from pallas_kernels.quantized_gemm import QuantizedWeights, quantized_gemm

__all__ = ["KINDS", "Hybrid", "Linear", "Reference", "Staged", "linear_by_name"]

KINDS = (
    *("qkv", "q_b", "o", "gate_up", "down", "experts_gate_up", "experts_down"),
    *("shared_gate_up", "shared_down", "head"),
)

Layer = Any  # a Python number, a traced int32, or None for the head


# The model only calls `linear(projections, name, layer, x)`, so that benchmarks compare equal code.
# `layer` is an index into the stack, traced inside a scan. No strategy lets XLA slice an array in
# host memory.
class Linear(Protocol):
    """Strategy for projections; its pytree leaves are run-time settings."""

    @property
    def placement(self) -> Placement:
        """Placement of the weights."""

    def prepare(self, projections: Projections) -> Projections:
        """Prepare projections once per call."""

    def rows(self, table: Any, ids: jax.Array) -> jax.Array:
        """Return rows of an embedding [V, C]: [T, C] in device memory."""

    def __call__(
        self, projections: Projections, name: str, layer: Layer, x: jax.Array, *, out_dtype: Any
    ) -> jax.Array:
        """Return x[M, K] times the transpose of W[N, K]: [M, N]."""

    def experts(
        self,
        projections: Projections,
        name: str,
        layer: Layer,
        x: jax.Array,
        group_sizes: jax.Array,
    ) -> jax.Array:
        """Return the product with a W per expert; rows are contiguous."""


def linear_by_name(name: str) -> Linear:
    """Return "reference", "hybrid" or "staged" with defaults.

    Raises:
      SettingError: an unknown name.
    """
    strategies = {"reference": Reference, "hybrid": Hybrid, "staged": Staged}
    if name not in strategies:
        raise SettingError("linear", name, f"one of {', '.join(strategies)}")
    strategy: Linear = strategies[name]()
    return strategy


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Weights in device memory, multiplied by XLA.

    Layers are unrolled. A scan (`by_layer=False`) compiles faster, but copies each layer: decoding
    is three times slower on a CPU.
    """

    by_layer: bool = field(default=True, metadata={"static": True})

    @property
    def placement(self) -> Placement:
        """Device memory."""
        return Placement(memory="device", by_layer=self.by_layer)

    def prepare(self, projections: Projections) -> Projections:
        """Return the projections unchanged."""
        return projections

    def rows(self, table: Any, ids: jax.Array) -> jax.Array:
        """Return rows of an array in device memory."""
        result: jax.Array = table[ids]
        return result

    def __call__(
        self, projections: Projections, name: str, layer: Layer, x: jax.Array, *, out_dtype: Any
    ) -> jax.Array:
        """Return x times the transpose of W."""
        return _matmul(x, _of_layer(projections[name], layer), out_dtype)

    def experts(
        self,
        projections: Projections,
        name: str,
        layer: Layer,
        x: jax.Array,
        group_sizes: jax.Array,
    ) -> jax.Array:
        """Return each row times its expert's transposed W."""
        w = _plain(_of_layer(projections[name], layer), x.dtype)
        return grouped_matmul(x, w, group_sizes)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Weights in host memory, copied layer by layer; then XLA."""

    @property
    def placement(self) -> Placement:
        """Host memory, an array per layer."""
        on_cpu = jax.default_backend() == "cpu"
        return Placement(memory="host", by_layer=True, transposed=on_cpu)

    def prepare(self, projections: Projections) -> Projections:
        """Return the projections unchanged."""
        return projections

    def rows(self, table: Any, ids: jax.Array) -> jax.Array:
        """Fetch only the table's needed rows."""
        return gather_rows(table, ids)

    def __call__(
        self, projections: Projections, name: str, layer: Layer, x: jax.Array, *, out_dtype: Any
    ) -> jax.Array:
        """Return x times the transpose of W, copied."""
        return _matmul(x, _copied(_of_layer(projections[name], layer)), out_dtype)

    def experts(
        self,
        projections: Projections,
        name: str,
        layer: Layer,
        x: jax.Array,
        group_sizes: jax.Array,
    ) -> jax.Array:
        """Return each row times its expert's transposed W, copied."""
        w = _plain(_copied(_of_layer(projections[name], layer)), x.dtype)
        return grouped_matmul(x, w, group_sizes)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid:
    """Weights in host memory, read in place by our kernels.

    Attributes:
      alpha: share of columns for SymGEMM by kind of projection (`KINDS`); missing or NaN:
        predicted. A change compiles nothing.
      sm_limit: maximum SMs of a launch, likewise; None for all.
      cluster: CTAs that share a tile; None: the best.
    """

    alpha: Mapping[str, Any] = field(default_factory=dict)
    sm_limit: Any = None
    cluster: int | None = field(default=None, metadata={"static": True})
    backend: Choice = field(default="auto", metadata={"static": True})

    @property
    def placement(self) -> Placement:
        """Host memory, with stacks padded for TMA."""
        return Placement(memory="host", by_layer=False, multiple=64)

    def with_alpha(self, **alpha: Any) -> Hybrid:
        """Return the strategy with other alphas, as arrays; other kinds are NaN.

        Raises:
          SettingError: a name outside `KINDS`.
        """
        for name in alpha:
            if name not in KINDS:
                raise SettingError("linear.alpha", name, f"one of {', '.join(KINDS)}")
        every = dict.fromkeys(KINDS, jnp.nan) | dict(self.alpha) | alpha
        shares = {kind: jnp.asarray(value, jnp.float32) for kind, value in every.items()}
        return replace(self, alpha=shares)

    def prepare(self, projections: Projections) -> Projections:
        """Move weights to memory that the backend can read."""
        backend = resolve_backend(self.backend)
        if backend == "sm90":
            return projections

        def moved(leaf: Any) -> Any:
            return leaf.operand(backend) if isinstance(leaf, HostArray) else leaf

        tree: Projections = jax.tree.map(
            moved, dict(projections), is_leaf=lambda leaf: isinstance(leaf, HostArray)
        )
        return tree

    def rows(self, table: Any, ids: jax.Array) -> jax.Array:
        """Fetch rows with the `gather_rows` kernel."""
        return gather_rows(table, ids, sm_limit=self.sm_limit, backend=self.backend)

    def __call__(
        self, projections: Projections, name: str, layer: Layer, x: jax.Array, *, out_dtype: Any
    ) -> jax.Array:
        """Return x times the transpose of W."""
        w = projections[name]
        if isinstance(w, QuantizedWeights):
            return quantized_gemm(
                x,
                w,
                layer=layer,
                cluster=self.cluster,
                sm_limit=self.sm_limit,
                out_dtype=out_dtype,
                backend=self.backend,
            )
        return hybrid_gemm(
            x,
            w,
            self.alpha.get(name),
            layer=layer,
            cluster=self.cluster,
            sm_limit=self.sm_limit,
            out_dtype=out_dtype,
            backend=self.backend,
        )

    def experts(
        self,
        projections: Projections,
        name: str,
        layer: Layer,
        x: jax.Array,
        group_sizes: jax.Array,
    ) -> jax.Array:
        """Return rows times their expert's transposed W; idle experts are unread."""
        w: PackedWeights | QuantizedWeights = projections[name]
        options: dict[str, Any] = {
            "layer": layer,
            "cluster": self.cluster,
            "sm_limit": self.sm_limit,
            "backend": self.backend,
        }
        if isinstance(w, QuantizedWeights):
            return grouped_gemm(x, w, group_sizes, **options)
        columns = w.data.shape[-1]  # padded K
        x = jnp.pad(x, ((0, 0), (0, columns - w.k)))
        product = grouped_gemm(x, w.data, group_sizes, w_layout="nk", **options)
        return product[:, : w.n]


def _of_layer(weights: Any, layer: Layer) -> Any:
    if layer is None:
        return weights
    if isinstance(weights, tuple | list):
        return weights[layer]
    return jax.tree.map(lambda w: lax.dynamic_index_in_dim(w, layer, keepdims=False), weights)


def _copied(weights: Any) -> Any:
    def copied(leaf: Any) -> Any:
        return leaf.to_device() if isinstance(leaf, HostArray) else leaf

    return jax.tree.map(copied, weights, is_leaf=lambda leaf: isinstance(leaf, HostArray))


def _plain(w: Any, dtype: Any) -> jax.Array:
    if not isinstance(w, QuantizedWeights):
        plain: jax.Array = w
        return plain
    values = widen(w.data, w.scales, w.offsets, kind=w.kind, group=w.group)
    return values[..., : w.n, : w.k].astype(dtype)


def _matmul(x: jax.Array, w: Any, out_dtype: Any) -> jax.Array:
    axis = 1
    if isinstance(w, Transposed):
        axis, w = 0, w.data
    w = _plain(w, x.dtype)
    product = lax.dot_general(
        jnp.pad(x, ((0, 0), (0, w.shape[axis] - x.shape[1]))),  # a table's rows may be padded
        w,
        (((1,), (axis,)), ((), ())),
        # the default rounds float32 to fewer bits on some devices
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return product.astype(out_dtype)
