"""Router of mixture-of-experts models, with skew and locality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from c2c.draws import DRAWS, draw, hashed, request_key
from c2c.jit import formula
from c2c.ranges import BelowOne, In, check_fields
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
_OWN_PART: Final = 0.5  # weight of a request's own part in it, relative to its topic's centre

_TOPIC: Final = 0x5EED  # replaces the layer in draws for a whole request
GUIDE_SHIFT: Final = 20  # a draw shifted right by this indexes `RouterTables.guide`


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """Router: the tokens' choice of experts.

    In each layer a topic ranks the experts and chooses by Zipf's law. Draws are pure functions of
    (seed, request, position, layer).

    Attributes:
      skew: exponent of Zipf's law; 0: uniform.
      locality: probability that the next token keeps an expert.
      topics: number of equally likely topics; a request has one.
    """

    skew: Annotated[float, In("[0, 10]")] = 0.0
    locality: BelowOne = 0.0
    topics: Annotated[int, In("[1, 1024]")] = 8

    def __post_init__(self) -> None:
        check_fields(self, "router")


class RouterTables(NamedTuple):
    """Tables of a router for several architectures (A, the first axis of each array).

    A draw is a whole number below 2**32, for its fraction. One that keeps no expert is the part
    above `locality`, rescaled to [0, 1).

    Attributes:
      layers: i64[A], layers with experts; 0: dense.
      experts: i64[A], experts of a layer.
      per_token: i64[A], experts a token.
      cut: i64[A, 2, experts], least draw above each rank; axis 1: any draw, a draw not kept.
      guide: i16[A, 2, 4096], rank of the first draw in each of 4096 equal ranges.
      order: i16[A, topics, layers, experts], expert of each rank.
      kept: draws below this keep the previous token's expert.
    """

    layers: Any
    experts: Any
    per_token: Any
    cut: Any
    guide: Any
    order: Any
    kept: int
    seed: int


def router_tables(
    router: Router, shapes: Sequence[tuple[int, int, int]], seed: int
) -> RouterTables:
    """Return the tables for architectures of (layers, experts per layer, experts per token).

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
        seed=seed,
    )


def _first_draws(levels: np.ndarray, locality: float) -> np.ndarray:
    """Return, by exact bisection, the least draws of the levels."""
    low = np.full(len(levels), ceil(locality * DRAWS) - 1)  # not reached
    high = np.full(len(levels), DRAWS)  # reached, or no draw
    while (high - low > 1).any():
        middle = (low + high) // 2
        reached = (middle / DRAWS - locality) / (1.0 - locality) >= levels
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return high


@formula
def topic_of(tables: RouterTables, request: int) -> int:
    """Return a request's topic."""
    return int(draw(tables.seed, request, 0, _TOPIC, 0) * tables.order.shape[1])


@formula
def embed(tables: RouterTables, request: int, out: Any) -> None:
    """Write a request's embedding of length 1: its topic's centre plus its own part."""
    topic = topic_of(tables, request)
    total = 0.0
    for k in range(len(out)):
        centre = draw(tables.seed, -1 - topic, 0, _TOPIC, k) - 0.5
        share = draw(tables.seed, request, 1, _TOPIC, k) - 0.5
        out[k] = centre + _OWN_PART * share
        total += out[k] * out[k]
    for k in range(len(out)):
        out[k] /= max(total, 1e-12) ** 0.5


@formula
def token_key(tables: RouterTables, request: int, layer: int) -> int:
    """Return a request's random key in a layer."""
    return hashed(request_key(tables.seed, request), layer)
