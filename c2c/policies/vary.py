"""Choice of an instance's step variant."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from c2c.compiling.decision import decision, jitable
from c2c.draws import draw
from c2c.policies.returns import A_COUNT, A_HOME, DUE, YES_OR_NO
from c2c.policies.traits import VaryTraits
from c2c.ranges import AboveZero, BelowOne, Count, Index, Share

__all__ = [
    "HOME_DTYPE",
    "WATCH_DTYPE",
    "AsAlpha",
    "ByNeed",
    "ByRatio",
    "ByThresholds",
    "ByWait",
    "ByWaiting",
    "Waits",
    "answer",
    "kv_home",
    "most_rows",
    "note_end",
    "variant",
]

_HOME: Final = 0x40E  # layer argument of the draw of a home

# A row for each instance of a chip.
WATCH_DTYPE = np.dtype(
    [
        ("instance", "i8"),
        ("model", "i8"),
        ("waiting", "i8"),  # waiting requests
        ("prompts", "i8"),  # prompts under computation
        ("decodes", "i8"),
        ("backlog", "i8"),  # prompt tokens not computed yet
        ("kv_used", "i8"),  # tokens
        ("kv_capacity", "i8"),
        ("steps", "i8"),  # decode steps so far
        ("vacancy", "f8"),  # largest free share of a memory where its first home has nothing
    ],
    align=True,
)

# A row for each possible KV-cache home of a sequence.
HOME_DTYPE = np.dtype(
    [
        ("home", "i8"),
        ("sequences", "i8"),  # other sequences of the batch with this home
        ("room_tokens", "i8"),  # free room
        ("is_here", "i8"),  # 1: present home of the sequence
    ],
    align=True,
)


def _first(policy: Any, own: Any, chip: int, instance: int, waiting: int, now_s: float) -> int:
    return 0


def _fewest(
    policy: Any, own: Any, table: Any, count: int, instance: int, request: int, tokens: int,
    seed: int,
) -> int:  # fmt: skip
    best = -1
    for k in range(count):
        row = table[k]
        if row.room_tokens < tokens:
            continue
        is_fewer = best < 0 or row.sequences < table[best].sequences
        is_as_few = best >= 0 and row.sequences == table[best].sequences
        if is_fewer or (is_as_few and row.is_here != 0):
            best = k
    return best


def _once(policy: Any, own: Any, table: Any, count: int, chip: int, now_s: float) -> float:
    return math.inf


def _nothing(
    policy: Any, own: Any, chip: int, instance: int, latency_s: float, execution_s: float,
    is_prompt: bool, is_steady: bool,
) -> bool:  # fmt: skip
    return False


def _all_rows(policy: Any, own: Any, instance: int, max_batch: int) -> int:
    return max_batch


@decision(default=_first, returns=A_COUNT)
def variant(policy: Any, own: Any, chip: int, instance: int, waiting: int, now_s: float) -> int:
    """Return the variant of the step that an instance begins.

    Args:
      instance: all of its kind on a chip change together.
      waiting: requests with uncomputed prompts.
    """


@decision(default=_nothing, returns=YES_OR_NO)
def note_end(
    policy: Any, own: Any, chip: int, instance: int, latency_s: float, execution_s: float,
    is_prompt: bool, is_steady: bool,
) -> bool:  # fmt: skip
    """Record an ended request; the result is ignored.

    Args:
      latency_s: since its arrival.
      execution_s: its steps, each alone.
      is_prompt: whether it met the TTFT target.
      is_steady: whether it met the TPOT target.
    """


@decision(default=_all_rows, returns=A_COUNT)
def most_rows(policy: Any, own: Any, instance: int, max_batch: int) -> int:
    """Return an instance's most requests, at most `max_batch`; needs `caps_batch`."""


@decision(default=_fewest, returns=A_HOME, rows=HOME_DTYPE)
def kv_home(
    policy: Any, own: Any, table: Any, count: int, instance: int, request: int, tokens: int,
    seed: int,
) -> int:  # fmt: skip
    """Return the row of a KV cache's home, or -1: wait.

    Called when a request joins, and for the batch before a change of variant.

    Args:
      table: `HOME_DTYPE`; the first `count` rows are valid.
      request: with `seed` the key of a draw (`c2c.draws`).
      tokens: of its prompt and output.
    """


@decision(default=_once, returns=DUE, rows=WATCH_DTYPE)
def answer(policy: Any, own: Any, table: Any, count: int, chip: int, now_s: float) -> float:
    """Handle a chip's timer; return when it is due next, or inf.

    A variant is in force at its instance's next step boundary.

    Args:
      table: `WATCH_DTYPE`; the first `count` rows are valid.
    """


class AsAlpha(NamedTuple):
    """A constant variant by `alpha`, 0 (first) to 1."""


variant.by(AsAlpha)(_first)
answer.by(AsAlpha)(_once)
kv_home.by(AsAlpha)(_fewest)


class ByRatio(NamedTuple):
    """The first variant; a drawn share of KV caches is at homes after the first.

    A sequence takes the first home for a full one, never the reverse.

    Source: WEAVER, section 4.3.

    Attributes:
      ratio: share of sequences at later homes.
    """

    ratio: Share = 0.45


variant.by(ByRatio)(_first)
answer.by(ByRatio)(_once)


@kv_home.by(ByRatio)
def _by_ratio(
    policy: ByRatio, own: Any, table: Any, count: int, instance: int, request: int, tokens: int,
    seed: int,
) -> int:  # fmt: skip
    drawn = draw(seed, request, 0, _HOME, 0)
    if count > 1 and drawn < policy.ratio:
        home = 1 + min(count - 2, int(drawn / policy.ratio * (count - 1)))
        if table[home].room_tokens >= tokens:
            return home
    return 0 if table[0].room_tokens >= tokens else -1


class ByNeed(NamedTuple):
    """The first variant; sequences leave the first home once it has little room.

    Ours, for WEAVER's layout.

    Attributes:
      spare: such sequences for which the first home keeps room.
    """

    spare: Index = 8


variant.by(ByNeed)(_first)
answer.by(ByNeed)(_once)


@kv_home.by(ByNeed)
def _by_need(
    policy: ByNeed, own: Any, table: Any, count: int, instance: int, request: int, tokens: int,
    seed: int,
) -> int:  # fmt: skip
    best = 0
    if table[0].room_tokens < (1 + policy.spare) * tokens:
        for k in range(1, count):
            best = k if table[k].room_tokens > table[best].room_tokens else best
    return best if table[best].room_tokens >= tokens else -1


class Waits(NamedTuple):
    """Memory of `ByWait` and `ByWaiting`, a row for each chip.

    Attributes:
      latency_s: sum over requests that ended in the window.
      execution_s: as `latency_s`.
      chosen: variant in force.
    """

    ends_s: Any
    requests: Any
    latency_s: Any
    execution_s: Any
    chosen: Any


def _no_waits(fleet: Any, window_s: float) -> Waits:
    n = len(fleet.chip_first) - 1
    requests, chosen = np.zeros(n, np.int64), np.zeros(n, np.int64)
    return Waits(np.full(n, window_s), requests, np.zeros(n), np.zeros(n), chosen)


class ByWait(NamedTuple):
    """The second variant while requests queue, else the first; decided once a window.

    They queue if their mean latency over their mean execution is above the threshold.

    Source: Tessera, section III-D. Ours: the band.

    Attributes:
      window_s: W.
      threshold: beta.
      band: a variant stays while the ratio is within this share of the threshold.
    """

    window_s: AboveZero = 0.3
    threshold: AboveZero = 1.5
    band: BelowOne = 0.0

    def memory(self, fleet: Any) -> Waits:
        """Return the initial memory."""
        return _no_waits(fleet, self.window_s)

    @property
    def traits(self) -> VaryTraits:
        """Constant traits of this policy."""
        return VaryTraits(follows_waits=True)


@note_end.by(ByWait)
def _note(
    policy: ByWait, own: Any, chip: int, instance: int, latency_s: float, execution_s: float,
    is_prompt: bool, is_steady: bool,
) -> bool:  # fmt: skip
    own.requests[chip] += 1
    own.latency_s[chip] += latency_s
    own.execution_s[chip] += execution_s
    return True


@jitable
def _end_window(own: Any, chip: int, window_s: float, now_s: float, chosen: int) -> None:
    windows = math.floor((now_s - own.ends_s[chip]) / window_s) + 1.0
    own.ends_s[chip] += windows * window_s
    own.requests[chip] = 0
    own.latency_s[chip] = 0.0
    own.execution_s[chip] = 0.0
    own.chosen[chip] = chosen


@variant.by(ByWait)
def _by_wait(policy: ByWait, own: Any, chip: int, instance: int, waiting: int, now_s: float) -> int:
    if own.requests[chip] > 0 and now_s >= own.ends_s[chip]:
        chosen = int(own.chosen[chip])
        if own.execution_s[chip] > 0.0:
            ratio = own.latency_s[chip] / own.execution_s[chip]
            if ratio > policy.threshold * (1.0 + policy.band):
                chosen = 1
            elif ratio < policy.threshold * (1.0 - policy.band):
                chosen = 0
        _end_window(own, chip, policy.window_s, now_s, chosen)
    return int(own.chosen[chip])


class ByWaiting(NamedTuple):
    """The second variant while more than `prompts` prompts wait, else the first (ours).

    Attributes:
      window_s: seconds between two decisions.
      prompts: waiting prompts, with the running step's; equality keeps the variant.
    """

    window_s: AboveZero = 0.3
    prompts: AboveZero = 4.0

    def memory(self, fleet: Any) -> Waits:
        """Return the initial memory."""
        return _no_waits(fleet, self.window_s)

    @property
    def traits(self) -> VaryTraits:
        """Constant traits of this policy."""
        return VaryTraits(follows_waits=True)


@variant.by(ByWaiting)
def _by_waiting(
    policy: ByWaiting, own: Any, chip: int, instance: int, waiting: int, now_s: float
) -> int:
    if now_s >= own.ends_s[chip]:
        chosen = int(own.chosen[chip])
        if waiting > policy.prompts:
            chosen = 1
        elif waiting < policy.prompts:
            chosen = 0
        _end_window(own, chip, policy.window_s, now_s, chosen)
    return int(own.chosen[chip])


class Scales(NamedTuple):
    """Memory of `ByThresholds`, a row for each instance.

    Attributes:
      late: requests that missed a target in the period.
      slow: missed the TPOT target.
      copied: step from unscaled to scaled.
      moved: migrations.
      rows: most requests in the batch.
      grid: i8[2] number of steps, and of migrations at each.
    """

    ended: Any
    late: Any
    slow: Any
    copied: Any
    moved: Any
    rows: Any
    grid: Any


class ByThresholds(NamedTuple):
    """Copies while others' memory is vacant, relief while targets are missed; one a period.

    Source: CoCoServe, sections 4 and 5; if both hold, copies come first.

    Attributes:
      period_s: seconds between two decisions.
      vacant: T_up, share of another device's memory.
      late: T_down, share of the requests that miss a target.
      fewer: requests by which the batch changes.
      least: minimum of the batch.
    """

    period_s: AboveZero = 1.0
    vacant: Share = 0.3
    late: Share = 0.1
    fewer: Count = 5
    least: Count = 1

    def memory(self, fleet: Any) -> Scales:
        """Return the initial memory."""
        n, moves = fleet.instances, int(fleet.kv.reliefs[0])
        ended, late, slow, copied, moved = np.zeros((5, n), np.int64)
        rows, steps = np.full(n, fleet.max_batch), fleet.costs.body_s.shape[2] // (moves + 1)
        return Scales(ended, late, slow, copied, moved, rows, np.array([steps, moves]))

    @property
    def traits(self) -> VaryTraits:
        """Constant traits of this policy."""
        return VaryTraits(follows_waits=True, timer_s=self.period_s, caps_batch=True)


@note_end.by(ByThresholds)
def _count_late(
    policy: ByThresholds, own: Any, chip: int, instance: int, latency_s: float, execution_s: float,
    is_prompt: bool, is_steady: bool,
) -> bool:  # fmt: skip
    own.ended[instance] += 1
    if not (is_prompt and is_steady):
        own.late[instance] += 1
    if not is_steady:
        own.slow[instance] += 1
    return True


@variant.by(ByThresholds)
def _on_grid(
    policy: ByThresholds, own: Any, chip: int, instance: int, waiting: int, now_s: float
) -> int:
    return int(own.copied[instance] * (own.grid[1] + 1) + own.moved[instance])


@most_rows.by(ByThresholds)
def _capped(policy: ByThresholds, own: Any, instance: int, max_batch: int) -> int:
    return int(min(max_batch, own.rows[instance]))


@jitable
def _evict_other(own: Any, table: Any, count: int, instance: int) -> bool:
    # The instance with most copies, other than this one, drops a step of them.
    most = -1
    for n in range(count):
        i = table[n].instance
        if i != instance and own.copied[i] > 0 and (most < 0 or own.copied[i] > own.copied[most]):
            most = i
    if most < 0:
        return False
    own.copied[most] -= 1
    return True


@answer.by(ByThresholds)
def _scale(
    policy: ByThresholds, own: Any, table: Any, count: int, chip: int, now_s: float
) -> float:
    for n in range(count):
        row = table[n]
        i = row.instance
        ended = max(1, own.ended[i])
        is_late = own.late[i] > policy.late * ended
        is_slow = own.slow[i] > policy.late * ended
        own.ended[i], own.late[i], own.slow[i] = 0, 0, 0
        if row.kv_capacity == 0:  # it has no model
            continue
        if own.copied[i] + 1 < own.grid[0] and row.vacancy > policy.vacant:
            own.copied[i] += 1
        elif not is_late:
            own.rows[i] += policy.fewer
        elif own.moved[i] < own.grid[1]:
            own.moved[i] += 1
        elif not _evict_other(own, table, count, i) and is_slow:
            rows = min(own.rows[i], row.decodes + row.prompts) - policy.fewer
            own.rows[i] = max(min(policy.least, own.rows[i]), rows)
    return now_s + policy.period_s
