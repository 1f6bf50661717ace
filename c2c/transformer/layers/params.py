"""Parameters as a pytree of stacked layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np

from c2c.transformer.layers.embedding import Table

__all__ = ["Params", "Placement", "Projections", "Transposed", "device_of"]

Projections = Mapping[str, Any]
"""GEMM weights by name: a stack [L, N, K] ([L, E, N, K] of experts), a tuple of a matrix a layer,
`HostArray`s, `PackedWeights` or `Transposed` of either; `head` is one matrix, absent where it is
tied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Memory of projections and embeddings; the rest is in device memory."""

    memory: Literal["device", "host"]
    by_layer: bool  # an array per layer, not one for all
    multiple: int = 1  # K and N are zero-padded to multiples of it
    transposed: bool = False  # matrices of floats are [K, N], but for experts and tables


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Transposed:
    """A matrix [K, N], as XLA on CPUs packs [N, K] at each product."""

    data: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Arrays of one model.

    `layers` has small weights on the device, stacked [L, ...]: attention_norm, mlp_norm and
    optionally q_norm, k_norm, q_a_norm, kv_a_norm, kv_b, qkv_bias, o_bias, gate_up_bias, down_bias,
    router.
    """

    embed: Table  # [vocab, hidden]
    final_norm: Any  # [hidden]
    layers: Mapping[str, Any]
    projections: Projections

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of activations, cache and unquantised parameters."""
        kind: np.dtype[Any] = np.dtype(self.final_norm.dtype)
        return kind

    @property
    def device(self) -> Any:
        """Jax device that computes the model."""
        return device_of(self.final_norm)


def device_of(array: Any) -> Any:
    """Return an array's device; an abstract one's: jax's first."""
    sharding = getattr(array, "sharding", None)
    return jax.devices()[0] if sharding is None else next(iter(sharding.device_set))
