"""Model whose layers' parts are placed over devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, Final

import jax
import numpy as np

from c2c.errors import SettingError
from c2c.models import ModelSpec
from c2c.systems.tessera.lanes import PARTS
from c2c.transformer.executables import Executables, Stage
from c2c.transformer.layers.cache import Pooled, Rows
from c2c.transformer.layers.layer import (
    Layer,
    attention,
    attention_out,
    before_attention,
    feed_forward,
    layer_of,
    turns_of,
    window_of,
)
from c2c.transformer.layers.linear import Linear
from c2c.transformer.layers.params import Params
from c2c.transformer.over_pools import OverPools, Path
from c2c.transformer.running.kv_pool import KvPool
from c2c.transformer.running.stays import Laid, Stay
from pallas_kernels.arguments import Choice

__all__ = ["Placed"]

_QKV, _ATTENTION, _OUT, _FEED = PARTS
_READS: Final = {_QKV: ("x",), _ATTENTION: ("q", "k", "v"), _OUT: ("x", "mixed"), _FEED: ("x",)}
_WRITES: Final = {_QKV: ("q", "k", "v"), _ATTENTION: ("mixed",), _OUT: ("x",), _FEED: ("x",)}
_PARTS_OF: Final = {  # weights of the feed-forward block have other names
    **dict.fromkeys(("attention_norm", "qkv", "qkv_bias", "q_norm", "k_norm"), (_QKV,)),
    **dict.fromkeys(("q_b", "q_a_norm", "kv_a_norm"), (_QKV,)),
    **dict.fromkeys(("o", "o_bias", "attention_out_norm"), (_OUT,)),
    "kv_b": (_QKV, _OUT),
}


@dataclass(frozen=True, slots=True)
class _Segment:
    number: int
    device: int
    parts: tuple[str, ...]
    layer: Layer  # with the weights of these parts alone
    reads: tuple[str, ...]  # values that come from earlier segments


class Placed(OverPools):
    """A model with layers' parts placed on several devices.

    A layer's KV is on its attention's device.

    Source: Tessera, section III, with parts in place of kernels.
    """

    def __init__(
        self,
        params: Params,
        spec: ModelSpec,
        linear: Linear,
        pools: Sequence[KvPool],
        placement: Sequence[Sequence[int]],
        *,
        executables: Executables | None = None,
        backend: Choice = "auto",
    ) -> None:
        """Copy the weights of each part to its device.

        Args:
          placement: [layer][part], as in `PARTS`.
          SettingError: another model, or an unknown device.
        """
        devices = {device for row in placement for device in row}
        whole = all(len(row) == len(PARTS) for row in placement)
        if len(placement) != spec.layers or not whole or not devices <= {*range(len(pools))}:
            allowed = f"{len(PARTS)} devices below {len(pools)} for each of {spec.layers} layers"
            raise SettingError("placement", placement, allowed)
        super().__init__(params, spec, linear, pools, executables=executables)
        self._path: Path = tuple(row[PARTS.index(_ATTENTION)] for row in placement)
        self._backend, self.sent = backend, 0
        self._placed: dict[tuple[int, int], tuple[Any, Any]] = {}  # with its source, for its id
        self.segments = [
            _Segment(
                n,
                device,
                parts,
                self._weights(layer_of(params, spec, n, linear), *run),
                _reads(parts),
            )
            for n, row in enumerate(placement)
            for run in _runs(row)
            for device, parts in (run,)
        ]
        self._placed.clear()

    def _weights(self, layer: Layer, device: int, parts: tuple[str, ...]) -> Layer:
        def on_device(weights: Mapping[str, Any]) -> dict[str, Any]:
            return {
                name: jax.tree.map(partial(self._put_once, device), leaf)
                for name, leaf in weights.items()
                if any(part in parts for part in _PARTS_OF.get(name, (_FEED,)))
            }

        return replace(
            layer, small=on_device(layer.small), projections=on_device(layer.projections)
        )

    def _put_once(self, device: int, leaf: Any) -> Any:
        if (device, id(leaf)) not in self._placed:
            self._placed[device, id(leaf)] = leaf, self.put(device, leaf)
        return self._placed[device, id(leaf)][1]

    def path_of(self, stay: Stay) -> Path:  # noqa: ARG002 (all requests have one path)
        """Return the devices of all layers' attention."""
        return self._path

    def compute(
        self, laid: Laid, tokens: Any, logit_indices: Any, *, has_logits: bool = True
    ) -> Any:
        """Return the wanted tokens' logits, or the last layer's output."""
        x, *first = self.begin(laid, tokens)
        tables, on = self.tables(laid), {segment.device for segment in self.segments}
        stands = {d: first if d == 0 else self._stand(d, laid) for d in on}
        pages = {d: jax.device_put(tables, self.pools[d].device) for d in {*self._path}}
        values, device_of = {"x": x}, {"x": 0}
        for segment in self.segments:
            d = segment.device
            for name in segment.reads:
                if device_of[name] != d:
                    values[name] = jax.device_put(values[name], self.pools[d].device)
                    device_of[name], self.sent = d, self.sent + 1
            values |= self._run(segment, values, pages.get(d), stands[d])
            device_of |= dict.fromkeys(_WRITES[segment.parts[-1]], d)
        x = values["x"] if device_of["x"] == 0 else jax.device_put(values["x"], self.device)
        return self.end(x, logit_indices) if has_logits else x

    def ready(self, laid: Laid, tokens: Any) -> Any:
        """Prepare a call shape's executables; return the shape of the logits."""
        x, *_ = self.begin(laid, tokens, ahead=True)
        tables = np.zeros((self.spec.layers, len(laid.rows), laid.width), np.int32)
        stands = {d: self._stand(d, laid, ahead=True) for d in {s.device for s in self.segments}}
        values, ready = {"x": x}, set[tuple[int, tuple[str, ...], bool]]()
        for segment in self.segments:
            kind = segment.device, segment.parts, self.kinds[segment.number]
            if kind not in ready:  # others like it write the same shapes
                ready.add(kind)
                stand = stands[segment.device]
                values |= self._run(segment, values, tables, stand, ahead=True)
        return self.end(values["x"], laid.wanted, ahead=True)

    def _stand(self, device: int, laid: Laid, *, ahead: bool = False) -> Any:
        return self.stand(device, laid.positions, len(laid.rows), laid.decode_rows, ahead=ahead)

    def _run(
        self, segment: _Segment, values: Mapping[str, Any], tables: Any, stand: Any, *,
        ahead: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        pool, n, parts = self.pools[segment.device], segment.number, segment.parts
        attends, (rows, turns) = _ATTENTION in parts, stand
        written, arrays = self.on(segment.device, ahead=ahead)(_SEGMENT)(
            {name: values[name] for name in segment.reads},
            replace(pool.arrays, tables=None) if attends else None,
            segment.layer, tables if attends else None, np.int32(n), self.windows[n], rows,
            turns if _QKV in parts else None,
            parts=parts, spec=self.nameless, backend=self._backend, sparse=self.kinds[n],
        )  # fmt: skip
        if attends and not ahead:
            pool.arrays = arrays
        result: dict[str, Any] = written
        return result


def _runs(row: Sequence[int]) -> list[tuple[int, tuple[str, ...]]]:
    """Return the devices of a layer's adjacent parts.

    >>> _runs((0, 1, 1, 0))
    [(0, ('qkv',)), (1, ('attention', 'o')), (0, ('feed_forward',))]
    """
    pairs = zip(row, PARTS, strict=True)
    return [
        (device, tuple(part for _, part in run)) for device, run in groupby(pairs, lambda p: p[0])
    ]


def _reads(parts: Sequence[str]) -> tuple[str, ...]:
    """Return the values that adjacent parts read and none of them writes before.

    >>> _reads(("attention", "o"))
    ('q', 'k', 'v', 'x')
    """
    names: list[str] = []
    for k, part in enumerate(parts):
        before = [name for one in parts[:k] for name in _WRITES[one]]
        names += [name for name in _READS[part] if name not in (*before, *names)]
    return tuple(names)


def _segment(
    values: dict[str, Any], pool: Pooled | None, layer: Layer, tables: Any, number: Any,
    window: Any, rows: Rows, turns: Any, parts: tuple[str, ...], spec: ModelSpec,
    backend: Choice, sparse: bool,
) -> tuple[dict[str, Any], Pooled | None]:  # fmt: skip
    ready = replace(layer, projections=layer.linear.prepare(layer.projections))
    for part in parts:
        if part == _QKV:
            q, k, v = before_attention(ready, values["x"], turns_of(turns, spec, number), spec)
            values = values | {"q": q, "k": k, "v": v}
        elif part == _ATTENTION:
            assert pool is not None
            pages = replace(pool, tables=tables[number])
            mixed, after = attention(
                pages.seen_by(spec), rows, 0,
                window_of(spec, number) if window is None else window,
                *(values[name] for name in _READS[part]),
                soft_cap=spec.attention_cap or None, backend=backend,
            )  # fmt: skip
            values, pool = values | {"mixed": mixed}, replace(pages.with_pages(after), tables=None)
        elif part == _OUT:
            values = values | {"x": attention_out(ready, values["x"], values["mixed"], spec)}
        else:
            values = values | {"x": feed_forward(ready, values["x"], rows, spec, sparse=sparse)}
    return {name: values[name] for name in _WRITES[parts[-1]]}, pool


_SEGMENT = Stage(
    name="placed_parts", function=_segment, donated=(1,),
    static=("parts", "spec", "backend", "sparse"),
)  # fmt: skip
