"""Which experts the tokens of requests take, layer by layer: a router with skew and locality.

A request has a topic. In each layer a topic prefers experts in an order of its own, by Zipf's law;
each of a token's experts is kept from the token before it with a fixed probability. Everything is
a pure function of (seed, request, position, layer), so what is drawn does not depend on who asks
first. The functions are plain Python in the subset that Numba compiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numba.extending import register_jitable

from c2c.errors import SettingError
from c2c.workloads.streams import stream_of

__all__ = [
    "EMBEDDING",
    "Router",
    "RouterTables",
    "draw",
    "embed",
    "router_tables",
    "token_experts",
    "token_key",
    "topic_of",
]

EMBEDDING: Final = 16  # numbers in a request's embedding

_MASK: Final = 0xFFFFFFFF
_STEP: Final = 0x1E3779B9
_TRIES: Final = 64  # draws for one place before the next free expert is taken
_TOPIC: Final = 0x5EED  # what draws for a request as a whole have in place of a layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """How tokens take their experts.

    Attributes:
      skew: exponent of Zipf's law over a topic's order of experts; 0: all are equally likely.
      locality: probability that an expert is kept from one token to the next.
      topics: of a trace; each request has one, all equally likely.
      spread: how far the embeddings of a topic's requests lie from its centre, of length 1.
    """

    skew: float = 0.0
    locality: float = 0.0
    topics: int = 8
    spread: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 <= self.skew <= 10.0:
            raise SettingError("router.skew", self.skew, "a number from 0 to 10")
        if not 0.0 <= self.locality < 1.0:
            raise SettingError("router.locality", self.locality, "a number in [0, 1)")
        if not 1 <= self.topics <= 1024:
            raise SettingError("router.topics", self.topics, "a whole number from 1 to 1024")
        if not 0.0 <= self.spread < float("inf"):
            raise SettingError("router.spread", self.spread, "a number, at least 0")


class RouterTables(NamedTuple):
    """A router of several architectures as arrays, the first axis an architecture.

    Attributes:
      layers: i8[A] that have experts; 0 where a model is dense.
      experts: i8[A] of a layer.
      per_token: i8[A] that a token takes.
      cumulative: f8[A, experts] probability that an expert's rank is at most this one.
      order: i4[A, topics, layers, experts] expert of each rank.
      locality: see `Router`.
      spread: likewise.
      seed: of all draws.
    """

    layers: Any
    experts: Any
    per_token: Any
    cumulative: Any
    order: Any
    locality: float
    spread: float
    seed: int


def router_tables(
    router: Router, shapes: Sequence[tuple[int, int, int]], seed: int
) -> RouterTables:
    """Return the tables of architectures with these (layers, experts a layer, experts a token).

    >>> router_tables(Router(skew=1.0, topics=1), [(2, 2, 1)], seed=0).cumulative.round(3).tolist()
    [[0.667, 1.0]]
    """
    deepest, widest = (max(1, *(shape[axis] for shape in shapes)) for axis in (0, 1))
    cumulative = np.ones((len(shapes), widest))
    order = np.zeros((len(shapes), router.topics, deepest, widest), np.int32)
    for arch, (layers, experts, _) in enumerate(shapes):
        if experts == 0:
            continue
        weight = np.arange(1.0, experts + 1.0) ** -router.skew
        cumulative[arch, :experts] = np.cumsum(weight) / weight.sum()
        cumulative[arch, experts - 1] = 1.0
        ranks = np.tile(np.arange(experts, dtype=np.int32), (router.topics, layers, 1))
        order[arch, :, :layers, :experts] = stream_of(seed, "experts", arch).permuted(ranks, axis=2)
    sizes = np.array(shapes, np.int64).T.copy()
    return RouterTables(
        sizes[0], sizes[1], sizes[2], cumulative, order, router.locality, router.spread, seed
    )


@register_jitable
def _mixed(x: int) -> int:
    # Multipliers below 2**31 keep products of 32-bit numbers within 63 bits: the interpreter's
    # integers and the machine's agree.
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x31848BAB) & _MASK
    return x ^ (x >> 16)


@register_jitable
def _next(key: int, number: int) -> int:
    return _mixed(((key ^ (number & _MASK)) + _STEP) & _MASK)


@register_jitable
def draw(seed: int, request: int, position: int, layer: int, k: int) -> float:
    """Return a number in [0, 1) that only these five determine."""
    key = _next(_next(_mixed((seed + _STEP) & _MASK), request), position)
    return _next(_next(key, layer), k) / 4294967296.0


@register_jitable
def topic_of(tables: RouterTables, request: int) -> int:
    """Return the topic of a request."""
    return int(draw(tables.seed, request, 0, _TOPIC, 0) * tables.order.shape[1])


@register_jitable
def embed(tables: RouterTables, request: int, out: Any) -> None:
    """Write the embedding of a request, of length 1: its topic's centre and a part of its own."""
    topic = topic_of(tables, request)
    total = 0.0
    for k in range(len(out)):
        centre = draw(tables.seed, -1 - topic, 0, _TOPIC, k) - 0.5
        own = draw(tables.seed, request, 1, _TOPIC, k) - 0.5
        out[k] = centre + tables.spread * own
        total += out[k] * out[k]
    for k in range(len(out)):
        out[k] /= max(total, 1e-12) ** 0.5


@register_jitable
def token_key(tables: RouterTables, request: int, layer: int) -> int:
    """Return what `token_experts` draws from for the tokens of a request in a layer."""
    return _next(_next(_mixed((tables.seed + _STEP) & _MASK), request), layer)


@register_jitable
def _expert(tables: RouterTables, arch: int, topic: int, layer: int, u: float) -> int:
    low, high = 0, tables.experts[arch] - 1
    while low < high:
        middle = (low + high) // 2
        if tables.cumulative[arch, middle] > u:
            high = middle
        else:
            low = middle + 1
    return int(tables.order[arch, topic, layer, low])


@register_jitable
def _is_taken(out: Any, n: int, expert: int) -> bool:
    for k in range(n):  # noqa: SIM110 (compiled code makes no generators)
        if out[k] == expert:
            return True
    return False


@register_jitable
def token_experts(
    tables: RouterTables, arch: int, key: int, topic: int, position: int, layer: int, out: Any
) -> None:
    """Write the experts of one token, all different.

    Place k of `out` goes back to the last position at which it was drawn anew. Where its expert is
    taken by a place before it, its next draws of that position follow.

    Args:
      tables: of the router.
      arch: the model's row of them.
      key: `token_key` of the request and layer.
      topic: of the request.
      position: of the token, from 0.
      layer: from 0.
      out: i8, as long as the most experts a token takes.
    """
    experts = tables.experts[arch]
    for k in range(tables.per_token[arch]):
        at = position
        own = _next(key, at)
        u = _next(own, k) / 4294967296.0
        while at > 0 and u < tables.locality:
            at -= 1
            own = _next(key, at)
            u = _next(own, k) / 4294967296.0
        if at > 0:
            u = (u - tables.locality) / (1.0 - tables.locality)
        expert = _expert(tables, arch, topic, layer, u)
        tries = 1
        while tries < _TRIES and _is_taken(out, k, expert):
            u = _next(own, k + tries * experts) / 4294967296.0
            expert = _expert(tables, arch, topic, layer, u)
            tries += 1
        while _is_taken(out, k, expert):
            expert = (expert + 1) % experts
        out[k] = expert
