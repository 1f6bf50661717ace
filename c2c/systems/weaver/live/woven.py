"""Woven executor: some sequences' KV caches and attention on another device."""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from c2c.draws import draw
from c2c.errors import SettingError
from c2c.models import ModelSpec
from c2c.ranges import Share, check_value
from c2c.systems.weaver.live.links import Link, LinkLost
from c2c.systems.weaver.live.receiver import ATTEND, TAKE, bare
from c2c.transformer.executables import Stage
from c2c.transformer.layers.cache import Rows
from c2c.transformer.layers.forward import BEGIN, nameless
from c2c.transformer.layers.layer import (
    Layer,
    after_attention,
    before_attention,
    needed,
    place_in,
    turns_of,
)
from c2c.transformer.layers.layout import feed_forward_places
from c2c.transformer.layers.linear import Linear
from c2c.transformer.layers.pages import PAGE_TOKENS
from c2c.transformer.running.executor import GaveWay, OnDevice, SharesNothing, Stored, bound
from c2c.transformer.running.shapes import Shapes
from c2c.transformer.running.stays import Laid, Stay
from pallas_kernels.arguments import Choice
from pallas_kernels.woven import Status, TaskFailed

__all__ = ["Woven", "check_ratio", "is_away"]

_jax: Any = jax  # partly untyped
_log = logging.getLogger("c2c.systems.weaver")

_HOME = 0x40E  # what the draw of a home has in place of a layer

Heads = tuple[Any, Any, Any]  # queries, keys and values of some rows


def is_away(seed: int, request: int, ratio: float) -> bool:
    """Return whether a request's cache goes to the receiver."""
    return draw(seed, request, 0, _HOME, 0) < ratio


def check_ratio(ratio: float) -> None:
    """Validate the share of away requests."""
    check_value(ratio, Share, "ratio")


class Woven(SharesNothing):
    """A model with a receiver for some requests' KV caches.

    Away blocks are sent once, after the prompt. Sequences stay whole: results equal a plain step's.

    Source: WEAVER, sections 3 and 4.1.
    """

    ends_apart = True

    def __init__(
        self,
        local: OnDevice,
        link: Link,
        shapes: Shapes,
        *,
        ratio: float,
        seed: int = 0,
        backend: Choice = "auto",
    ) -> None:
        """Create an executor without requests.

        Args:
          ratio: share of away requests.

        Raises:
          SettingError: a ratio outside [0, 1], or layers that share arrays.
        """
        check_ratio(ratio)
        if not local.linear.placement.by_layer:
            raise SettingError("linear", local.linear, "a strategy with an array per layer")
        self.local, self.link, self.shapes = local, link, shapes
        self.spec, self.device, self.executables = local.spec, local.device, local.executables
        self.ratio, self.seed = ratio, seed
        self.steps = self.sent = 0  # steps with away rows, and their tasks
        self.brought = 0  # moved requests
        self.planned: dict[int, bool] = {}  # whether a request goes away, if not by its draw
        self.fallbacks: Counter[str] = Counter()  # recomputed requests, by reason
        self.times: list[tuple[float, float, float]] | None = None
        """Of each task: when it was sent, own rows were done, its result came; None: not noted."""
        self._away: dict[Stay, int] = {}  # sequences on the receiver
        self._fallen: set[int] = set()  # requests that stay at home despite their draw
        self._numbers = itertools.count()
        self._lost = ""  # reason for not using the receiver any more
        self._backend: Choice = backend
        self._nameless = nameless(local.spec)
        self._stage: Callable[[Stage], Callable[..., Any]] = bound(local.executables)

    @property
    def away(self) -> tuple[int, ...]:
        """Requests with keys and values on the receiver."""
        return tuple(stay.request for stay in self._away)

    @property
    def available(self) -> int:
        """Blocks that can be taken now at home."""
        return self.local.available

    def use(self, link: Link) -> None:
        """Use another link, while no request is away."""
        assert not self._away
        self.link, self._lost = link, ""

    def lacks(self, stored: Stored) -> int:
        """Count blocks that requests lack at home."""
        return self.local.lacks(self._own(stored))

    def grow(self, stored: Stored) -> None:
        """Allocate requests' blocks at home.

        Raises:
          OutOfPages: too few free blocks.
        """
        self.local.grow(self._own(stored))

    def give(self, stay: Stay) -> None:
        """Free a request's blocks, at home and away."""
        self.local.give(stay)
        number = self._away.pop(stay, None)
        self.planned.pop(stay.request, None)
        if number is None:
            self._fallen.discard(stay.request)
        elif not self._lost:
            try:
                self.link.give(number)
            except LinkLost as error:
                self._lose(error)

    def end(self, x: Any, logit_indices: Any) -> Any:
        """Return logits from an output of `compute`."""
        return self.local.end(x, logit_indices)

    def compute(
        self, laid: Laid, tokens: Any, logit_indices: Any, *, has_logits: bool = True
    ) -> Any:
        """Return the wanted tokens' logits, or the last layer's output.

        Raises:
          GaveWay: the receiver is full, late or gone.
        """
        away = [row for row, stay in enumerate(laid.rows) if stay in self._away]
        if not away:
            result = self.local.compute(laid, tokens, logit_indices, has_logits=has_logits)
        else:
            if self._lost:
                raise self._all_fall()
            try:
                x = self._woven(laid, tokens, away)
            except TaskFailed as failed:
                raise self._fall(laid, away, failed.status) from failed
            except LinkLost as error:
                self._lose(error)
                raise self._all_fall() from error
            result = self.end(x, logit_indices) if has_logits else x
        self._move(laid)
        return result

    def ready(self, laid: Laid, tokens: Any) -> Any:
        """Prepare a call shape's executables, for any number of away rows."""
        assert self.executables is not None
        local, spec, ahead = self.local, self._nameless, self.executables.bind_ahead
        logits = local.ready(laid, tokens)
        ahead(TAKE)(bare(local.pool), np.int32(0), spec=spec)
        if not laid.decode_rows:
            return logits
        x, rows, turns = ahead(BEGIN)(
            local.params.embed, tokens, laid.positions, local.linear, count=len(laid.rows),
            decode_rows=laid.decode_rows, spec=spec, dtype=str(local.params.dtype),
        )  # fmt: skip
        for size in (n for n in self.shapes.rows if self._class(laid.decode_rows) >= n):
            index = np.zeros(size, np.int32)
            done: set[bool] = set()
            for number, (sparse, place) in enumerate(feed_forward_places(spec)):
                if sparse not in done:
                    weights = self._weights(number, place, sparse=sparse)
                    qkv, gone = ahead(_BEFORE)(x, turns, *weights, index, spec=spec)
                    ahead(ATTEND)(
                        bare(local.pool), np.int32(0), local.tables(laid), laid.positions, *qkv,
                        spec=spec, backend=self._backend, decode_rows=laid.decode_rows,
                    )  # fmt: skip
                    ahead(_AFTER)(
                        x, qkv[0], gone[0], index, rows, *weights, spec=spec, sparse=sparse
                    )
                done.add(sparse)
        return logits

    def _class(self, count: int) -> int:
        return next(rows for rows in self.shapes.rows if rows >= count)

    def _own(self, stored: Stored) -> Stored:
        return [(stay, n) for stay, n in stored if stay not in self._away]

    def _weights(
        self, number: int, place: int, *, sparse: bool
    ) -> tuple[Mapping[str, Any], Mapping[str, Any], Any, Any, Linear]:
        params, spec = self.local.params, self.spec
        projections = {
            name: stack[place_in(name, number, place)]
            for name, stack in params.projections.items()
            if name != "head" and needed(name, sparse)
        }
        numbers = np.int32(number), np.int32(place) if spec.dense_layers else None
        return params.layers, projections, *numbers, self.local.linear

    def _woven(self, laid: Laid, tokens: Any, away: Sequence[int]) -> Any:
        local, spec, stage, first = self.local, self._nameless, self._stage, int(laid.chunk > 0)
        size, total = self._class(len(away)), len(laid.positions)
        index = np.full(size, total, np.int32)  # past the end: belongs to no row
        index[: len(away)] = [laid.chunk + row - first for row in away]
        sequences = np.full(size, -1, np.int32)
        sequences[: len(away)] = [self._away[laid.rows[row]] for row in away]  # type: ignore[index]
        self.steps += 1
        self.link.table(sequences, np.append(laid.positions, np.int32(-1))[index] + 1)
        positions = laid.positions.copy()
        positions[index[: len(away)]] = -1
        has_own = bool((positions >= 0).any())
        tables = jax.device_put(local.tables(laid), self.device)
        x, rows, turns = stage(BEGIN)(
            local.params.embed, tokens, laid.positions, local.linear, count=len(laid.rows),
            decode_rows=laid.decode_rows, spec=spec, dtype=str(local.params.dtype),
        )  # fmt: skip
        for number, (sparse, place) in enumerate(feed_forward_places(spec)):
            weights = self._weights(number, place, sparse=sparse)
            qkv, gone = stage(_BEFORE)(x, turns, *weights, index, spec=spec)
            sent_s = self.link.send(*gone)
            self.sent += 1
            mixed = qkv[0]  # of rows that nobody attends to: any values of this shape
            if has_own:
                mixed, local.pool.arrays = stage(ATTEND)(
                    bare(local.pool), np.int32(number), tables, positions, *qkv,
                    spec=spec, backend=self._backend, decode_rows=laid.decode_rows,
                )  # fmt: skip
            own_s = 0.0
            if self.times is not None:
                _jax.block_until_ready(mixed)
                own_s = time.monotonic()
            part = jax.device_put(self.link.wait(), self.device)
            if self.times is not None:
                self.times.append((sent_s, own_s, time.monotonic()))
            x = stage(_AFTER)(x, mixed, part, index, rows, *weights, spec=spec, sparse=sparse)
        return x

    def _move(self, laid: Laid) -> None:
        stay = laid.rows[0] if laid.chunk else None
        if stay is None or laid.drawing[0] is not stay or stay.new < 2 or self._lost:
            return
        drawn = is_away(self.seed, stay.request, self.ratio)
        if stay.request in self._fallen or not self.planned.get(stay.request, drawn):
            return
        pool, number = self.local.pool, next(self._numbers)
        blocks = [
            self._stage(TAKE)(bare(pool), np.int32(block), spec=self._nameless)
            for block in self.local.blocks(stay)
        ]
        try:
            there = self.link.bring(number, blocks)
        except LinkLost as error:
            self._lose(error)
            return
        if there:
            self.local.give(stay)
            self._away[stay] = number
            self.brought += 1

    def _lose(self, error: LinkLost) -> None:
        if not self._lost:
            self._lost = str(error)
            _log.warning("the receiver is not asked any more: %s", error)
            self.link.close()

    def _all_fall(self) -> GaveWay:
        return self._gave_way(list(self._away), "LOST", self._lost)

    def _fall(self, laid: Laid, away: Sequence[int], status: Status) -> GaveWay:
        first = int(laid.chunk > 0)
        some = [
            row for row in away
            if status is Status.NO_BLOCKS
            and laid.positions[laid.chunk + row - first] % PAGE_TOKENS == 0
        ]  # fmt: skip
        stays = [stay for row in some or away if (stay := laid.rows[row]) is not None]
        return self._gave_way(stays, status.name, f"the receiver says {status.name}")

    def _gave_way(self, stays: Sequence[Stay], kind: str, why: str) -> GaveWay:
        requests = [stay.request for stay in stays]
        again = GaveWay(requests, why)
        new = set(requests) - self._fallen
        if new:  # reported and counted once
            _log.warning("%s", again)
            self.fallbacks[kind] += len(new)
            self._fallen |= new
        return again


def _before(
    x: Any, turns: Any, small: Any, weights: Any, number: Any, place: Any, linear: Linear,
    index: Any, spec: ModelSpec,
) -> tuple[Heads, Heads]:  # fmt: skip
    layer = _layer(small, weights, linear, number, place)
    q, k, v = before_attention(layer, x, turns_of(turns, spec, number), spec)
    gone = tuple(jnp.take(array, index, axis=0, mode="clip") for array in (q, k, v))
    return (q, k, v), (gone[0], gone[1], gone[2])


def _after(
    x: Any, mixed: Any, part: Any, index: Any, rows: Rows, small: Any, weights: Any, number: Any,
    place: Any, linear: Linear, spec: ModelSpec, sparse: bool,
) -> jax.Array:  # fmt: skip
    mixed = jnp.asarray(mixed).at[index].set(part.astype(mixed.dtype), mode="drop")
    layer = _layer(small, weights, linear, number, place)
    return after_attention(layer, x, mixed, rows, spec, sparse=sparse)


def _layer(small: Any, weights: Any, linear: Linear, number: Any, place: Any) -> Layer:
    return Layer(
        small=small, projections=weights, linear=linear, at=number, which=None, place=place
    )


_BEFORE = Stage(name="woven_before", function=_before, static=("spec",))
_AFTER = Stage(name="woven_after", function=_after, donated=(0,), static=("spec", "sparse"))
