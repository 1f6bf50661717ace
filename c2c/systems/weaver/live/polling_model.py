"""Polling model on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from c2c.errors import SettingError
from c2c.models import ModelSpec
from c2c.systems.weaver.live.receiver import ATTEND, bare
from c2c.transformer.executables import Executables, Stage
from c2c.transformer.layers.forward import BEGIN, END, nameless
from c2c.transformer.layers.layer import after_attention, before_attention, layer_of, turns_of
from c2c.transformer.layers.layout import feed_forward_places
from c2c.transformer.layers.linear import Layer, Reference
from c2c.transformer.layers.params import Params, Placement, Projections
from c2c.transformer.running.executor import OnDevice, bound
from c2c.transformer.running.kv_pool import KvPool
from c2c.transformer.running.stays import Laid

__all__ = ["InPieces", "Polled", "check_columns"]

_jax: Any = jax  # partly untyped

TILE: Final = 64  # columns


@dataclass(frozen=True, slots=True)
class Polled:
    """Strategy of matrices as tuples of pieces; without compiled layers and experts."""

    inner: Reference
    multiply: Callable[..., Any]
    poll: Callable[[Any], Any]

    @property
    def placement(self) -> Placement:
        """Device memory."""
        return self.inner.placement

    def prepare(self, projections: Projections) -> Projections:
        """Return the projections unchanged."""
        return projections

    def rows(self, table: Any, ids: jax.Array) -> jax.Array:
        """Return rows of an array in device memory."""
        return self.inner.rows(table, ids)

    def __call__(
        self, projections: Projections, name: str, layer: Layer, x: jax.Array, *, out_dtype: Any
    ) -> jax.Array:
        """Return x times W's transpose, with a poll after each piece."""
        del layer  # projections belong to one layer
        kind = str(np.dtype(out_dtype))
        parts = [self.poll(self.multiply(w, x, self.inner, dtype=kind)) for w in projections[name]]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


class InPieces(OnDevice):
    """A model that polls after attention and pieces of products.

    The time between polls bounds a task's wait. Pieces are whole tiles of columns: results do not
    change.

    Source: WEAVER, section 4.2.
    """

    ends_apart = True

    def __init__(
        self, params: Params, spec: ModelSpec, linear: Any, pool: KvPool, *, columns: int,
        executables: Executables | None = None,
    ) -> None:  # fmt: skip
        """Cut matrices, which are held twice.

        Args:
          params: floats with an array per layer.
          columns: most of a piece, whole tiles of 64; 0: no pieces.

        Raises:
          SettingError: a cut tile, a strategy but `Reference()`, or experts.
        """
        check_columns(columns, spec)
        if linear != Reference():
            raise SettingError("linear", linear, "the reference strategy with an array per layer")
        super().__init__(params, spec, linear, pool, executables=executables)
        self._stage = bound(self.executables)
        polled: Any = Polled(linear, self._stage(_PIECE), self._after)
        cut = {
            name: [_cut(w, columns) for w in matrices]
            for name, matrices in params.projections.items()
            if name != "head"
        }
        whole = Params(
            embed=params.embed, final_norm=params.final_norm, layers=params.layers, projections=cut
        )
        layers = range(spec.layers)
        self._layers = [layer_of(whole, spec, number, polled) for number in layers]
        self._polled = polled
        self._head = _cut(params.projections.get("head", params.embed.data), columns)

    def compute(
        self, laid: Laid, tokens: Any, logit_indices: Any, *, has_logits: bool = True
    ) -> Any:
        """Return the wanted tokens' logits, or the last layer's output."""
        pool, spec = self.pool, nameless(self.spec)
        tables = jax.device_put(self.tables(laid), self.device)
        x, rows, turns = self._stage(BEGIN)(
            self.params.embed, tokens, laid.positions, self.linear, count=len(laid.rows),
            decode_rows=laid.decode_rows, spec=spec, dtype=str(self.params.dtype),
        )  # fmt: skip
        for number, (sparse, _) in enumerate(feed_forward_places(spec)):
            q, k, v = before_attention(self._layers[number], x, turns_of(turns, spec, number), spec)
            mixed, pool.arrays = self._stage(ATTEND)(
                bare(pool), np.int32(number), tables, laid.positions, q, k, v, spec=spec,
                backend="auto", decode_rows=laid.decode_rows,
            )  # fmt: skip
            self._after(mixed)
            x = after_attention(self._layers[number], x, mixed, rows, spec, sparse=sparse)
        return self.end(x, logit_indices) if has_logits else x

    def end(self, x: Any, logit_indices: Any) -> Any:
        """Return logits from an output of `compute`."""
        return END.function(
            x, self.params.final_norm, self._head, logit_indices, self._polled, self.spec, ()
        )

    def ready(self, laid: Laid, tokens: Any) -> Any:
        """Return the logits' shape; a first step prepares executables."""
        del tokens
        return _jax.ShapeDtypeStruct((len(laid.wanted), self.spec.vocab), jnp.float32)

    def _after(self, value: Any) -> Any:
        if self.poll is not None:
            _jax.block_until_ready(value)
            self.poll()
        return value


def check_columns(columns: int, spec: ModelSpec) -> None:
    """Validate the columns of a piece for a model.

    Raises:
      SettingError: a cut tile, or experts.
    """
    if columns < 0 or columns % TILE:
        raise SettingError("columns", columns, f"0, or a multiple of a tile of {TILE}")
    if spec.experts:
        raise SettingError("columns", columns, f"0: {spec.name} has experts")


def _cut(w: Any, columns: int) -> tuple[Any, ...]:
    size = columns or w.shape[0]
    return tuple(w[first : first + size] for first in range(0, w.shape[0], size))


def _piece(w: Any, x: Any, linear: Any, dtype: str) -> jax.Array:
    result: jax.Array = linear({"w": w}, "w", None, x, out_dtype=dtype)
    return result


_PIECE = Stage(name="piece", function=_piece, static=("dtype",))
