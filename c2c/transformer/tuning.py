"""Fine-tuning with Flax."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from c2c.errors import SettingError
from c2c.models import ModelSpec
from c2c.transformer.layers.cache import Rows
from c2c.transformer.layers.forward import BEGIN, END
from c2c.transformer.layers.layer import (
    Layer,
    after_attention,
    before_attention,
    turns_of,
    window_of,
)
from c2c.transformer.layers.layout import feed_forward_places
from c2c.transformer.layers.linear import Reference
from c2c.transformer.layers.params import Params, Projections
from c2c.transformer.model import Model
from c2c.transformer.saving import plain, plain_params

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int32

try:
    from flax import nnx
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"c2c.transformer.tuning needs the extra `engine` ({error}): pip install -e '.[engine]'",
        name=error.name,
    ) from None

__all__ = ["Trainable", "from_nnx", "to_nnx"]


class Trainable(nnx.Module):
    """Differentiable model: `params` is the package's tree of `nnx.Param`.

    The backward pass recomputes layers: a layer's scores, float32 [rows, heads, T, T], are in
    memory.
    """

    def __init__(self, params: Params, spec: ModelSpec) -> None:
        self.params = nnx.data(jax.tree.map(nnx.Param, params))
        self.spec = spec

    def __call__(self, tokens: Int32[Array, "rows t"]) -> Float[Array, "rows t vocab"]:
        """Return the logits after each token, in float32; no token sees a later one.

        Dynamic and longrope frequencies are those of T tokens, padding included.
        """
        if len(tokens.shape) != 2 or not tokens.size:
            raise SettingError("tokens.shape", tokens.shape, "[rows, T], none of them 0")
        return _logits(plain(_arrays(self.params)), jnp.asarray(tokens, jnp.int32), self.spec)


def to_nnx(model: Model) -> Trainable:
    """Return a Flax module that shares the model's arrays until an update.

    Donation of the module makes the model unusable.
    """
    return Trainable(plain_params(model), model.spec)


def from_nnx(tuned: Trainable | nnx.State[Any, Any], model: Model) -> Model:
    """Return the model with tuned weights."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(plain_params(model))
    pairs = jax.tree_util.tree_leaves_with_path(_arrays(getattr(tuned, "params", {})))
    leaf_of = {_name(path): leaf for path, leaf in pairs}
    if differing := sorted(leaf_of.keys() ^ {_name(path) for path, _ in leaves}):
        has = "not in the state" if differing[0] not in leaf_of else "in the state"
        raise SettingError(differing[0], has, f"the entries of a {model.spec.family}'s parameters")
    for path, like in leaves:
        array = leaf_of[_name(path)]
        if (array.shape, array.dtype) != (like.shape, like.dtype):
            raise SettingError(
                _name(path),
                f"{array.dtype} {list(array.shape)}",
                f"{like.dtype} {list(like.shape)}",
            )
    placed = [jax.device_put(leaf_of[_name(path)], like.sharding) for path, like in leaves]
    return replace(model, params=jax.tree.unflatten(tree, placed))


def _name(path: Any) -> str:
    return f"params/{jax.tree_util.keystr(path, simple=True, separator='/')}"


def _arrays(tree: Any) -> Any:
    def is_variable(leaf: Any) -> bool:
        return isinstance(leaf, nnx.Variable)

    return jax.tree.map(lambda v: v[...] if is_variable(v) else v, tree, is_leaf=is_variable)


def _logits(params: Params, tokens: jax.Array, spec: ModelSpec) -> jax.Array:
    linear, (count, length) = Reference(), tokens.shape
    positions = jnp.tile(jnp.arange(length, dtype=jnp.int32), count)
    x, rows, turns = BEGIN.function(
        params.embed, tokens.reshape(-1), positions, linear,
        count=count, decode_rows=0, spec=spec, dtype=str(params.dtype),
    )  # fmt: skip
    for number in range(spec.layers):
        layer = jax.checkpoint(partial(_layer, number=number, linear=linear, spec=spec))
        x = layer(x, params.layers, params.projections, rows, turns)
    head = params.projections.get("head", params.embed.data)
    logits: jax.Array = END.function(
        x, params.final_norm, head, None, linear, spec=spec, shape=tokens.shape
    )
    return logits


def _layer(
    x: jax.Array, small: Any, projections: Projections, rows: Rows, turns: Any,
    *, number: int, linear: Reference, spec: ModelSpec,
) -> jax.Array:  # fmt: skip
    sparse, place = feed_forward_places(spec)[number]
    index = place if spec.dense_layers else None
    layer = Layer(
        small=small, projections=projections, linear=linear, at=number, which=number, place=index
    )
    qkv = before_attention(layer, x, turns_of(turns, spec, number), spec)
    q, k, v = (part.reshape(rows.chunk_rows, rows.chunk, *part.shape[1:]) for part in qkv)
    mixed = _attend(q, k, v, window_of(spec, number), spec.attention_cap)
    return after_attention(layer, x, mixed.reshape(qkv[0].shape), rows, spec, sparse=sparse)


def _attend(
    q: Float[Array, "rows t heads d"],
    k: Float[Array, "rows t kv d"],
    v: Float[Array, "rows t kv d"],
    window: Any,
    soft_cap: float,
) -> Float[Array, "rows t heads d"]:
    rows, length, _, size = q.shape
    exact = lax.Precision.HIGHEST
    queries = q.reshape(rows, length, k.shape[2], -1, size)
    scores = jnp.einsum(
        "btkgd,bskd->bkgts", queries, k, precision=exact, preferred_element_type=jnp.float32
    )
    scores = scores * size**-0.5
    if soft_cap:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    before = jnp.arange(length)[:, None] - jnp.arange(length)
    seen = (before >= 0) & (before < (length if window is None else window))
    shares = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1).astype(v.dtype)
    return jnp.einsum("bkgts,bskd->btkgd", shares, v, precision=exact).reshape(q.shape)
