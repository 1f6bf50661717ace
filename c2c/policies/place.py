"""Placement of a model on a slice (C2CServe section 6.2)."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from c2c.compiling.decision import decision, inlined
from c2c.policies.returns import A_CANDIDATE
from c2c.policies.traits import PlaceTraits
from c2c.ranges import In, SomeShare

__all__ = [
    "CANDIDATE_DTYPE",
    "BandwidthAware",
    "FirstIdle",
    "KvPressure",
    "LeastLoaded",
    "RandomIdle",
    "link_demand_gbps",
    "place",
]

# A row for each slice that can accept the model now: in free room, or by evicting an idle model.
CANDIDATE_DTYPE = np.dtype(
    [
        ("instance", "i8"),
        ("is_free", "i8"),  # 1: no eviction needed
        ("is_resident", "i8"),  # 1: the model is there, idle
        ("in_host", "i8"),  # 0: the weights are on disk
        ("last_used_s", "f8"),
        ("kv_capacity", "i8"),  # tokens of the model to place
        ("fits_now", "i8"),  # 1: the request's KV cache fits in the free room
        ("link_left_gbps", "f8"),  # the chip's link budget not reserved by busy instances
        ("is_alone", "i8"),  # 1: no busy instance on the chip has link rate reserved
        ("unpromised_gbps", "f8"),  # link_left_gbps less the demand of inactive models
        ("load_s", "f8"),  # a decode step of every busy engine of the slice, and their backlogs
        ("turns_s", "f8"),  # one turn of each of them and of the model
        ("kept_share", "f8"),  # share of the model's weights in the slice's HBM
        # share of the slice's HBM for KV caches in use after the request; 0: weights share no HBM
        ("kv_pressure", "f8"),
        ("chip", "i8"),
    ],
    align=True,
)


def link_demand_gbps(streamed_bytes: float, tpot_slo_s: float) -> float:
    """Return S_m / TPOT_m, the link rate of a decode target, 1e9 bytes/s.

    Source: C2CServe section 6.2. Ours: S_m: bytes that a decode step streams, of an MoE the active
    experts.
    """
    return streamed_bytes / tpot_slo_s / 1e9


@decision(returns=A_CANDIDATE, rows=CANDIDATE_DTYPE)
def place(
    policy: Any, own: Any, table: Any, count: int, tokens: int, demand_gbps: float, key: int
) -> int:
    """Return the row of a model's slice, or -1.

    Args:
      table: `CANDIDATE_DTYPE`; the first `count` rows are valid.
      tokens: KV tokens of the request.
      demand_gbps: link rate of the decode target.
      key: in [0, 2**31), for random choices.
    """


Rank = tuple[float, float, float, float]


@decision
def rank(policy: Any, own: Any, row: Any, tokens: int, demand_gbps: float) -> Rank:
    """Return a slice's ranks: the least is chosen, of equals the first row; inf: no fit.

    Args:
      row: row of `CANDIDATE_DTYPE`.
      tokens: KV tokens of the request.
      demand_gbps: link rate of the decode target.
    """


@inlined
def _out_of_question() -> Rank:
    return math.inf, math.inf, math.inf, math.inf


@inlined
def _can_start(row: Any, tokens: int) -> bool:
    return bool(row.is_resident == 0 and row.kv_capacity >= tokens)


@inlined
def _least(
    policy: Any, own: Any, table: Any, count: int, tokens: int, demand_gbps: float, key: int
) -> int:
    best, least = -1, _out_of_question()
    for row in range(count):
        this = rank(policy, own, table[row], tokens, demand_gbps)
        if this < least:
            best, least = row, this
    return best


class BandwidthAware(NamedTuple):
    """Placement where both the KV cache and the summed link demand fit.

    Order: chips with the weights; free slices; most budget left; longest unused; first row.

    Source: C2CServe sections 6.2 and 6.1 step 2; order and excess are ours.

    Attributes:
      headroom: share of the link that may be promised, in (0, 1].
    """

    headroom: SomeShare = 1.0

    @property
    def traits(self) -> PlaceTraits:
        """Constant traits of this policy."""
        return PlaceTraits(link_is_promised=True, link_headroom=self.headroom)


place.by(BandwidthAware)(_least)


@rank.by(BandwidthAware)
def _bandwidth_aware(
    policy: BandwidthAware, own: Any, row: Any, tokens: int, demand_gbps: float
) -> Rank:
    is_too_full = row.link_left_gbps < demand_gbps and row.is_alone == 0
    if is_too_full or not _can_start(row, tokens):
        return _out_of_question()
    return -float(row.in_host), -float(row.is_free), -row.unpromised_gbps, row.last_used_s


class FirstIdle(NamedTuple):
    """A free slice, else the longest unused; chips with the checkpoint first.

    Source: ServerlessLLM, its startup-time scheduler.
    """

    @property
    def traits(self) -> PlaceTraits:
        """Constant traits of this policy."""
        return PlaceTraits(reads_promises=False)


place.by(FirstIdle)(_least)


@rank.by(FirstIdle)
def _first_idle(policy: FirstIdle, own: Any, row: Any, tokens: int, demand_gbps: float) -> Rank:
    if not _can_start(row, tokens):
        return _out_of_question()
    return -float(row.in_host), -float(row.is_free), row.last_used_s, 0.0


class RandomIdle(NamedTuple):
    """A uniform draw among the slices whose KV cache fits.

    Source: C2CServe section 9.4.2; its candidate set is not given.
    """

    @property
    def traits(self) -> PlaceTraits:
        """Constant traits of this policy."""
        return PlaceTraits(reads_promises=False)


@place.by(RandomIdle)
def _random_idle(
    policy: RandomIdle, own: Any, table: Any, count: int, tokens: int, demand_gbps: float, key: int
) -> int:
    fitting = 0
    for row in range(count):
        if _can_start(table[row], tokens):
            fitting += 1
    if fitting == 0:
        return -1
    # Three rounds of the minimal standard generator: products stay below 2**47, so compiled and
    # interpreted arithmetic agree.
    x = key % 2147483646 + 1
    for _ in range(3):
        x = x * 48271 % 2147483647
    pick = x % fitting
    for row in range(count):
        if _can_start(table[row], tokens):
            if pick == 0:
                return row
            pick -= 1
    return -1


# Charges of `LeastLoaded` in seconds, ours.
_NEW_S: Final = 0.001  # a new engine
_EVICT_S: Final = 0.01  # an eviction
_STREAM_S: Final = 0.003  # weights outside HBM, in proportion
_FULL_S: Final = 5.0  # the request's KV cache does not fit now
_COLD_S: Final = 5.0  # weights on disk


class LeastLoaded(NamedTuple):
    """The slice whose engines have the fewest pending seconds (ours).

    Attributes:
      turns: weight of turns to the slice's engines with work.
    """

    turns: Annotated[float, In("[0, inf]")] = 0.0

    @property
    def traits(self) -> PlaceTraits:
        """Constant traits of this policy."""
        return PlaceTraits(reads_promises=False)


place.by(LeastLoaded)(_least)


@rank.by(LeastLoaded)
def _least_loaded(policy: LeastLoaded, own: Any, row: Any, tokens: int, demand_gbps: float) -> Rank:
    if row.kv_capacity < tokens:
        return _out_of_question()
    seconds = row.load_s + _STREAM_S * (1.0 - row.kept_share) + policy.turns * row.turns_s
    if row.is_resident == 0:
        seconds += _NEW_S
        if row.is_free == 0:
            seconds += _EVICT_S
    if row.fits_now == 0:
        seconds += _FULL_S
    if row.in_host == 0:
        seconds += _COLD_S
    return seconds, 0.0, 0.0, 0.0


class KvPressure(NamedTuple):
    """The slice with the smallest share of its HBM for KV caches in use.

    Source: Prism's KV pressure ratio (arXiv 2505.04021, section 5). Its demand: the rate of
    requests over their target; ours: KV in use.
    """

    @property
    def traits(self) -> PlaceTraits:
        """Constant traits of this policy."""
        return PlaceTraits(reads_promises=False)


place.by(KvPressure)(_least)


@rank.by(KvPressure)
def _kv_pressure(policy: KvPressure, own: Any, row: Any, tokens: int, demand_gbps: float) -> Rank:
    if row.kv_capacity < tokens or (row.is_resident == 0 and row.fits_now == 0):
        return _out_of_question()
    is_there = 1.0 if row.is_resident != 0 and row.fits_now != 0 else 0.0
    return -is_there, -float(row.in_host), row.kv_pressure, -float(row.is_free)
