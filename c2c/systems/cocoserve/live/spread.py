"""Model over several devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from c2c.errors import SettingError
from c2c.models import ModelSpec
from c2c.transformer.executables import Executables, Stage, in_host_memory
from c2c.transformer.layers.cache import Pooled, Rows
from c2c.transformer.layers.layer import Layer, layer_of, run_layer, turns_of, window_of
from c2c.transformer.layers.linear import Linear
from c2c.transformer.layers.params import Params
from c2c.transformer.over_pools import OverPools, Path
from c2c.transformer.running.kv_pool import KvPool
from c2c.transformer.running.shapes import Shapes
from c2c.transformer.running.stays import Laid, Stay
from pallas_kernels.arguments import Choice

__all__ = ["OverDevices", "Spread", "layer_bytes"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Copies of layers on devices, and paths of new requests.

    Attributes:
      copies: device indices of each layer's copies.
      paths: a new request gets the path with the fewest.

    Raises:
      SettingError: a layer without a copy, or a wrong path.
    """

    copies: tuple[tuple[int, ...], ...]
    paths: tuple[Path, ...]

    def __post_init__(self) -> None:
        if not self.copies:
            raise SettingError("spread.copies", [], "at least one layer")
        for number, devices in enumerate(self.copies):
            if not devices or len(set(devices)) < len(devices) or min(devices) < 0:
                allowed = "at least one device, each once, from 0"
                raise SettingError(f"spread.copies[{number}]", list(devices), allowed)
        if not self.paths:
            raise SettingError("spread.paths", [], "at least one path")
        for number, path in enumerate(self.paths):
            if not self.has(path):
                allowed = f"a device that holds the layer, for each of {len(self.copies)}"
                raise SettingError(f"spread.paths[{number}]", list(path), allowed)

    @classmethod
    def alone(cls, layers: int, device: int = 0) -> Spread:
        """Return a spread with all layers on one device."""
        return cls(((device,),) * layers, ((device,) * layers,))

    def has(self, path: Path) -> bool:
        """Return whether a path's devices hold their layers."""
        return len(path) == len(self.copies) and all(
            device in devices for device, devices in zip(path, self.copies, strict=True)
        )


class OverDevices(OverPools):
    """A model with copies of layers on several devices; KV is where its layer is computed.

    A step begins and ends on the first device.

    Source: CoCoServe, section 3.1.
    """

    def __init__(
        self,
        params: Params,
        spec: ModelSpec,
        linear: Linear,
        pools: Sequence[KvPool],
        shapes: Shapes,
        *,
        executables: Executables | None = None,
        capacity_bytes: Sequence[float] | None = None,
        backend: Choice = "auto",
        seed: int = 0,
    ) -> None:
        """Place all layers on the first device; nothing is computed or copied.

        Args:
          params: on the first pool's device with an array per layer, or in host memory.
          capacity_bytes: of each device for weights and pool.

        Raises:
          SettingError: layers share arrays in device memory.
        """
        super().__init__(params, spec, linear, pools, executables=executables)
        self.shapes, self.capacity_bytes = shapes, capacity_bytes
        self.spread = Spread.alone(spec.layers)
        self._stacks: dict[int, Any] = {}  # in host memory, as each device is given them
        self.weights = {}
        for n in range(spec.layers):
            layer = layer_of(params, spec, n, linear)
            self.weights[n, 0] = jax.tree.map(partial(self.put, 0), layer)
        self.planned: dict[int, Path | None] = {}  # assigned paths of new requests, by id
        self.counts: Counter[str] = Counter()  # steps, changes of rows' devices, transitions
        self.on_give: Any = None  # callback of a relayout for a request that ends
        self._backend, self._seed = backend, seed

    def source(self, number: int, device: int) -> Any:
        """Return a layer prepared for a copy to a device."""
        weights = self.weights
        layer = next(weights[number, d] for d in range(len(self.pools)) if (number, d) in weights)
        if self.linear.placement.by_layer:
            return layer
        if device not in self._stacks:
            there = SingleDeviceSharding(self.pools[device].device, memory_kind="pinned_host")
            self._stacks[device] = jax.device_put(layer.projections, there)
        return replace(layer, projections=self._stacks[device])

    def held_bytes(self, device: int) -> int:
        """Return the bytes of a device's pool and weights."""
        layers = sum(layer_bytes(layer) for (_, d), layer in self.weights.items() if d == device)
        ends = layer_bytes(self.ends) if device == 0 else 0
        return self.pools[device].nbytes + layers + ends

    def path_of(self, stay: Stay) -> Path:
        """Return a new request's path: assigned, or with the fewest requests."""
        path = self.planned.pop(stay.request, None)
        if path is not None and self.spread.has(path):
            return path
        used = Counter(cache.path for cache in self.kept.values())
        least = min(used[path] for path in self.spread.paths)
        free = [path for path in self.spread.paths if used[path] == least]
        return free[int(np.random.default_rng((self._seed, stay.request)).integers(len(free)))]

    def give(self, stay: Stay) -> None:
        """Free a request's blocks."""
        self.planned.pop(stay.request, None)
        if self.on_give is not None:
            self.on_give(stay)
        super().give(stay)

    def compute(
        self, laid: Laid, tokens: Any, logit_indices: Any, *, has_logits: bool = True
    ) -> Any:
        """Return the wanted tokens' logits, or the last layer's output."""
        call = _Call(self, laid, tokens)
        self.counts["steps"] += 1
        for devices, numbers in self._runs(laid):
            call.run([call.group(*group) for group in devices], numbers)
        x = call.whole()
        return self.end(x, logit_indices) if has_logits else x

    def _runs(self, laid: Laid) -> Iterator[tuple[list[tuple[int, tuple[int, ...]]], range]]:
        rows = [row for row, stay in enumerate(laid.rows) if stay is not None]
        paths = [self.kept[stay].path for stay in laid.rows if stay is not None]
        begun: set[int] = set()  # devices with rows at the previous layer
        first, before = 0, (0,) * len(rows)
        for devices, layers in groupby(zip(*paths, strict=True)):
            numbers = range(first, first + len(list(layers)))
            members: dict[int, tuple[int, ...]] = {}
            for row, device in zip(rows, devices, strict=True):
                members[device] = (*members.get(device, ()), row)
            self.counts["changes"] += devices != before
            self.counts["transitions"] += 2 * len(members.keys() - begun - {0})
            yield sorted(members.items()), numbers
            first, before, begun = numbers.stop, devices, set(members)
        self.counts["changes"] += any(before)

    def run_layer(self, device: int, number: int, x: Any, group: _Group) -> Any:
        """Return a layer's output; the group's activations are donated."""
        pool = self.pools[device]
        x, pool.arrays = self.stage[device](_LAYER)(
            x, replace(pool.arrays, tables=None), self.weights[number, device], group.tables,
            np.int32(number), self.windows[number], group.rows, group.turns,
            spec=self.nameless, backend=self._backend, sparse=self.kinds[number],
        )  # fmt: skip
        return x

    def ready(self, laid: Laid, tokens: Any) -> Any:
        """Prepare a call shape's executables for all groups and devices."""
        spec, (x, *_) = self.nameless, self.begin(laid, tokens, ahead=True)
        calls = {(laid.chunk, laid.decode_rows)}
        if laid.chunk + laid.decode_rows > 1:  # one row is all on one device
            calls |= {call for call in self.shapes.calls if call[0] in (0, laid.chunk)}
        for chunk, decode_rows in calls:
            index = np.zeros(chunk + decode_rows, np.int32)
            count = int(chunk > 0) + decode_rows
            part = self.on(0, ahead=True)(_GATHER)(x, index)
            self.on(0, ahead=True)(_SCATTER)(x, part, index)
            tables = np.zeros((spec.layers, count, laid.width), np.int32)
            for device, pool in enumerate(self.pools):
                rows, turns = self.stand(device, index, count, decode_rows, ahead=True)
                for kind in set(self.kinds):
                    number = self.kinds.index(kind)
                    source = next(d for d in range(len(self.pools)) if (number, d) in self.weights)
                    self.on(device, ahead=True)(_LAYER)(
                        part, replace(pool.arrays, tables=None),
                        self.weights[number, source], tables, np.int32(0), self.windows[number],
                        rows, turns, spec=spec, backend=self._backend, sparse=kind,
                    )  # fmt: skip
        return self.end(x, laid.wanted, ahead=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    device: int
    index: np.ndarray | None  # indices of its tokens in the call; None: all of them
    tables: Any
    rows: Rows
    turns: Any


@dataclass(slots=True)
class _Call:
    over: OverDevices
    laid: Laid
    tokens: Any
    _x: Any = None  # of all rows, on the first device, but for those of `_parts`
    _parts: list[tuple[_Group, Any]] = field(default_factory=list)
    _groups: dict[tuple[int, tuple[int, ...]], _Group] = field(default_factory=dict)
    _tables: Any = None
    _whole: Any = None

    def __post_init__(self) -> None:
        self._x, *stand = self.over.begin(self.laid, self.tokens)
        self._whole = tuple(stand)
        self._tables = self.over.tables(self.laid)

    def group(self, device: int, members: tuple[int, ...]) -> _Group:
        key = device, members
        if key not in self._groups:
            self._groups[key] = self._made(*key)
        return self._groups[key]

    def _made(self, device: int, members: tuple[int, ...]) -> _Group:
        over, laid = self.over, self.laid
        put = over.pools[device].device
        if len(members) == sum(stay is not None for stay in laid.rows):
            rows, turns = (
                self._whole
                if device == 0
                else over.stand(device, laid.positions, len(laid.rows), laid.decode_rows)
            )
            tables = jax.device_put(self._tables, put)
            return _Group(device=device, index=None, tables=tables, rows=rows, turns=turns)
        has_chunk = laid.chunk > 0 and members[0] == 0
        decodes = members[1:] if has_chunk else members
        call = over.shapes.call_for(laid.chunk if has_chunk else 0, len(decodes))
        assert call is not None  # the shape of the whole call is large enough
        chunk, decode_rows = call
        total, first = len(laid.positions), int(laid.chunk > 0)
        index = np.full(chunk + decode_rows, total, np.int32)
        index[:chunk] = np.arange(chunk)
        index[chunk : chunk + len(decodes)] = [laid.chunk + row - first for row in decodes]
        positions = np.append(laid.positions, np.int32(-1))[index]
        count = int(has_chunk) + decode_rows
        tables = np.full((over.spec.layers, count, laid.width), -1, np.int32)
        tables[:, : len(members)] = self._tables[:, list(members)]
        rows, turns = over.stand(device, positions, count, decode_rows)
        tables = jax.device_put(tables, put)
        return _Group(device=device, index=index, tables=tables, rows=rows, turns=turns)

    def run(self, groups: list[_Group], numbers: range) -> None:
        self._scatter()
        self._parts = [(group, self._gather(group)) for group in groups]
        for number in numbers:
            self._parts = [
                (group, self.over.run_layer(group.device, number, x, group))
                for group, x in self._parts
            ]

    def whole(self) -> Any:
        self._scatter()
        return self._x

    def _gather(self, group: _Group) -> Any:
        x = self._x if group.index is None else self.over.stage[0](_GATHER)(self._x, group.index)
        return jax.device_put(x, self.over.pools[group.device].device)

    def _scatter(self) -> None:
        for group, x in self._parts:
            part = jax.device_put(x, self.over.device)
            if group.index is None:
                self._x = part
            else:
                self._x = self.over.stage[0](_SCATTER)(self._x, part, group.index)
        self._parts = []


def layer_bytes(layer: Any) -> int:
    """Return a layer's weight bytes in device memory."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(layer) if not in_host_memory(leaf))


def _layer(
    x: Any, pool: Pooled, layer: Layer, tables: Any, number: Any, window: Any, rows: Rows,
    turns: Any, spec: ModelSpec, backend: Choice, sparse: bool,
) -> tuple[jax.Array, Pooled]:  # fmt: skip
    ready = replace(layer, projections=layer.linear.prepare(layer.projections))
    x, after = run_layer(
        ready, x, replace(pool, tables=tables[number]), rows,
        turns_of(turns, spec, number), page=0,
        window=window_of(spec, number) if window is None else window,
        spec=spec, backend=backend, sparse=sparse,
    )  # fmt: skip
    assert isinstance(after, Pooled)
    return x, replace(after, tables=None)


def _gather(x: Any, index: Any) -> jax.Array:
    return jnp.take(x, index, axis=0, mode="clip")


def _scatter(x: Any, part: Any, index: Any) -> jax.Array:
    return jnp.asarray(x).at[index].set(part, mode="drop")


_LAYER = Stage(
    name="spread_layer", function=_layer, donated=(0, 1), static=("spec", "backend", "sparse")
)
_GATHER = Stage(name="spread_gather", function=_gather)
_SCATTER = Stage(name="spread_scatter", function=_scatter, donated=(0,))
