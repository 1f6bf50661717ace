"""Experts of the tokens of requests, layer by layer: a router with skew and locality.

A request has a topic. In each layer a topic prefers experts in an order of its own, by Zipf's law;
each of a token's experts is kept from the token before it with a fixed probability. Everything is
a pure function of (seed, request, position, layer), so what is drawn does not depend on who asks
first (`c2c.simulator.tokens` draws). The functions are plain Python in the subset that Numba
compiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, NamedTuple

import numpy as np

from c2c.draws import DRAWS, draw, hashed, request_key
from c2c.errors import SettingError
from c2c.jit import formula
from c2c.workloads.streams import stream_of

__all__ = [
    "EMBEDDING",
    "GUIDE_SHIFT",
    "Router",
    "RouterTables",
    "embed",
    "router_tables",
    "token_key",
    "topic_of",
]

EMBEDDING: Final = 16  # numbers in a request's embedding

_TOPIC: Final = 0x5EED  # what draws for a request as a whole have in place of a layer
GUIDE_SHIFT: Final = 20  # a draw's bits below those that choose its part of `RouterTables.guide`


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """Tokens' choice of experts.

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

    A draw is a whole number below 2**32, and means what its fraction of 2**32 would in floating
    point; of a draw that is not kept, what is left of it above locality.

    Attributes:
      layers: i8[A] that have experts; 0 where a model is dense.
      experts: i8[A] of a layer.
      per_token: i8[A] that a token takes.
      cut: i8[A, 2, experts] the least draw above each rank; axis 1: any draw, one that is not kept.
      guide: i2[A, 2, 4096] the rank of the first draw of each part of all draws.
      order: i2[A, topics, layers, experts] expert of each rank.
      kept: draws below are kept from the token before.
      spread: see `Router`.
      seed: of all draws.
    """

    layers: Any
    experts: Any
    per_token: Any
    cut: Any
    guide: Any
    order: Any
    kept: int
    spread: float
    seed: int


def router_tables(
    router: Router, shapes: Sequence[tuple[int, int, int]], seed: int
) -> RouterTables:
    """Return the tables of architectures with these (layers, experts a layer, experts a token).

    >>> cut = router_tables(Router(skew=1.0, topics=1), [(2, 2, 1)], seed=0).cut
    >>> (cut[0, 0] / 2**32).round(3).tolist()
    [0.667, 1.0]
    """
    deepest, widest = (max(1, *(shape[axis] for shape in shapes)) for axis in (0, 1))
    cut = np.full((len(shapes), 2, widest), DRAWS)
    order = np.zeros((len(shapes), router.topics, deepest, widest), np.int16)
    for arch, (layers, experts, _) in enumerate(shapes):
        if experts == 0:
            continue
        weight = np.arange(1.0, experts + 1.0) ** -router.skew
        cumulative = np.cumsum(weight) / weight.sum()
        for row, locality in enumerate((0.0, router.locality)):
            cut[arch, row, : experts - 1] = _first_draws(cumulative[:-1], locality)
        ranks = np.tile(np.arange(experts, dtype=np.int16), (router.topics, layers, 1))
        order[arch, :, :layers, :experts] = stream_of(seed, "experts", arch).permuted(ranks, axis=2)
    parts = np.arange(0, DRAWS, 1 << GUIDE_SHIFT)
    guide = [[np.searchsorted(row, parts, side="right") for row in rows] for rows in cut]
    sizes = np.array(shapes, np.int64).T.copy()
    return RouterTables(
        layers=sizes[0],
        experts=sizes[1],
        per_token=sizes[2],
        cut=cut,
        guide=np.array(guide, np.int16),
        order=order,
        kept=ceil(router.locality * DRAWS),
        spread=router.spread,
        seed=seed,
    )


def _first_draws(levels: np.ndarray, locality: float) -> np.ndarray:
    """Return the least draws of which what is left above `locality` reaches each level, by halving.

    Floating point rounds, but never turns the order of two draws.
    """
    low = np.full(len(levels), ceil(locality * DRAWS) - 1)  # not reached
    high = np.full(len(levels), DRAWS)  # reached, or no draw
    while (high - low > 1).any():
        middle = (low + high) // 2
        reached = (middle / DRAWS - locality) / (1.0 - locality) >= levels
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return high


@formula
def topic_of(tables: RouterTables, request: int) -> int:
    """Return the topic of a request."""
    return int(draw(tables.seed, request, 0, _TOPIC, 0) * tables.order.shape[1])


@formula
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


@formula
def token_key(tables: RouterTables, request: int, layer: int) -> int:
    """Return the random key of a request's tokens in a layer."""
    return hashed(request_key(tables.seed, request), layer)
