"""Routing of tokens to experts."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from c2c.draws import hashed
from c2c.policies import inlined, jitable
from c2c.workloads import GUIDE_SHIFT, RouterTables, token_key, topic_of

__all__ = ["Followed", "draw_token", "follow", "nothing_followed", "token_experts"]

_TRIES: Final = 64  # draws for one place before the next free expert is taken
_ANY: Final = 0  # rows of `RouterTables.cut`
_NOT_KEPT: Final = 1
_NONE: Final = -2  # no position, nor the one before the first


class Followed(NamedTuple):
    """Requests with the last tokens of D devices; L layers, K places, E experts.

    Attributes:
      request: i8[D] id, or -1.
      topic: i8[D].
      key: i8[D, L] `token_key`.
      at: i8[D, L] position of the last token drawn.
      origin: i8[D, K, L] key and position of a place's draws.
      first: i8[D, K, L] expert of the first draw.
      here: scratch i8[L], source of the token's draws.
      drawn: scratch i8[K, L], their first experts.
      taken: scratch i8[E], a layer's last token with an expert, by `count`.
      count: i8[1] tokens of a layer so far.
    """

    request: Any
    topic: Any
    key: Any
    at: Any
    origin: Any
    first: Any
    here: Any
    drawn: Any
    taken: Any
    count: Any


def nothing_followed(tables: RouterTables, devices: int) -> Followed:
    """Return the initial state, without draws."""
    layers, experts, places = (
        max(1, int(sizes.max())) for sizes in (tables.layers, tables.experts, tables.per_token)
    )
    return Followed(
        request=np.full(devices, -1),
        topic=np.zeros(devices, np.int64),
        key=np.zeros((devices, layers), np.int64),
        at=np.full((devices, layers), _NONE),
        origin=np.zeros((devices, places, layers), np.int64),
        first=np.zeros((devices, places, layers), np.int64),
        here=np.zeros(layers, np.int64),
        drawn=np.zeros((places, layers), np.int64),
        taken=np.zeros(experts, np.int64),
        count=np.zeros(1, np.int64),
    )


@jitable
def follow(tables: RouterTables, f: Followed, d: int, arch: int, request: int) -> None:
    """Set the request, of architecture `arch`, of device `d`'s tokens."""
    if f.request[d] == request:
        return
    f.request[d] = request
    f.topic[d] = topic_of(tables, request)
    for layer in range(tables.layers[arch]):
        f.key[d, layer] = token_key(tables, request, layer)
        f.at[d, layer] = _NONE


# Most tokens follow the one before them in their request: only the changed places are drawn, and a
# device remembers the others. Any other token goes back to the position at which each of its places
# was drawn. Both give the same experts.
@inlined
def draw_token(tables: RouterTables, f: Followed, d: int, arch: int, position: int) -> None:
    """Draw the token at `position` in all layers at once."""
    layers = tables.layers[arch]
    for layer in range(layers):
        f.here[layer] = hashed(f.key[d, layer], position)
    for k in range(tables.per_token[arch]):
        for layer in range(layers):
            f.drawn[k, layer] = hashed(f.here[layer], k)


@inlined
def _expert(
    tables: RouterTables, arch: int, topic: int, layer: int, row: int, draw: int
) -> int:  # fmt: skip
    rank = int(tables.guide[arch, row, draw >> GUIDE_SHIFT])
    while tables.cut[arch, row, rank] <= draw:
        rank += 1
    return int(tables.order[arch, topic, layer, rank])


@jitable
def _go_back(
    tables: RouterTables, f: Followed, d: int, arch: int, layer: int, position: int
) -> None:
    # Find where each place of the token at `position` was drawn.
    for k in range(tables.per_token[arch]):
        index, origin, drawn = position, f.here[layer], f.drawn[k, layer]
        while index > 0 and drawn < tables.kept:
            index -= 1
            origin = hashed(f.key[d, layer], index)
            drawn = hashed(origin, k)
        row = _NOT_KEPT if index > 0 else _ANY
        f.origin[d, k, layer] = origin
        f.first[d, k, layer] = _expert(tables, arch, f.topic[d], layer, row, drawn)


@inlined
def _another(
    tables: RouterTables, f: Followed, d: int, arch: int, layer: int, k: int, expert: int
) -> int:
    # The expert of place k where `expert` is taken by a place before it.
    experts, count = tables.experts[arch], f.count[0]
    tries = 1
    while tries < _TRIES and f.taken[expert] == count:
        drawn = hashed(f.origin[d, k, layer], k + tries * experts)
        expert = _expert(tables, arch, f.topic[d], layer, _ANY, drawn)
        tries += 1
    while f.taken[expert] == count:
        expert = (expert + 1) % experts
    return expert


@inlined
def token_experts(
    tables: RouterTables, f: Followed, d: int, arch: int, layer: int, position: int, out: Any
) -> None:
    """Write the last token's experts in a layer, all different."""
    topic = f.topic[d]
    if f.at[d, layer] == position - 1:
        for k in range(tables.per_token[arch]):
            drawn = f.drawn[k, layer]
            # All ones where the place is drawn anew: half of the branches would be guessed wrong.
            anew = (tables.kept - 1 - drawn) >> 63
            expert = _expert(tables, arch, topic, layer, _NOT_KEPT, drawn)
            f.origin[d, k, layer] ^= (f.here[layer] ^ f.origin[d, k, layer]) & anew
            f.first[d, k, layer] ^= (expert ^ f.first[d, k, layer]) & anew
    else:
        _go_back(tables, f, d, arch, layer, position)
    f.at[d, layer] = position
    f.count[0] += 1
    count = f.count[0]
    for k in range(tables.per_token[arch]):
        expert = f.first[d, k, layer]
        if f.taken[expert] == count:
            expert = _another(tables, f, d, arch, layer, k, expert)
        f.taken[expert] = count
        out[k] = expert
