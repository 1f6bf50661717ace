"""Allowed results of each decision."""

from __future__ import annotations

from typing import Any, Final

from c2c.compiling.decision import jitable
from c2c.compiling.guard import Returns

__all__ = [
    "A_CANDIDATE",
    "A_CHUNK",
    "A_COUNT",
    "A_HOME",
    "A_NUMBER",
    "A_PLACE_IN_WEIGHTS",
    "A_ROUTE",
    "A_SHARE",
    "A_SHARE_OR_NONE",
    "A_STEP",
    "DUE",
    "ENDS_AT",
    "JOINS",
    "LAYERS",
    "NEXT",
    "SECONDS",
    "SHARE_OR_NEVER",
    "SLOT",
    "UNIT",
    "YES_OR_NO",
]

# Columns of a decoding sequence.
SLOT: Final = 0  # slot of its request
ENDS_AT: Final = 1  # decode clock of its instance at its last token


@jitable
def _is_route(row: int, own: Any, table: Any, count: int, tokens: int) -> bool:
    if row < 0 or row >= count:
        return row == -1
    return bool(table[row].draining == 0 and table[row].kv_capacity >= tokens)


@jitable
def _is_candidate(
    row: int, own: Any, table: Any, count: int, tokens: int, demand_gbps: float, key: int
) -> bool:  # fmt: skip
    if row < 0 or row >= count:
        return row == -1
    return bool(table[row].kv_capacity >= tokens)


@jitable
def _is_filled(steps: int, w: Any, i: int, now_s: float) -> bool:
    inst = w.s.instance[i]
    decodes = w.s.plan[inst.on_device].decodes
    if decodes != 0 and decodes != inst.n_decode:
        return False
    tokens, most = 0, w.fleet.costs.body_s.shape[1] - 1 - w.fleet.max_batch
    for k in range(inst.n_prefill):
        req = w.s.request[w.s.prefilling[i, k]]
        if req.step_tokens < 0 or req.step_tokens > req.prompt - req.prefilled:
            return False
        tokens += req.step_tokens
    least = steps
    for k in range(decodes):
        least = min(least, w.s.decoding[i, k, ENDS_AT] - inst.decode_clock)
    for k in range(decodes):
        rest = w.s.decoding[i, k, ENDS_AT] - inst.decode_clock
        if least + w.s.request[w.s.decoding[i, k, SLOT]].unreserved > rest:
            return False
    return bool(steps > 0 and tokens <= most and tokens + decodes > 0)


@jitable
def _is_home(row: int, own: Any, table: Any, count: int, *args: Any) -> bool:
    return -1 <= row < count


@jitable
def _may_join(joins: bool, need_bytes: float, room_bytes: float, batch: int, most: int) -> bool:
    return not joins or (need_bytes <= room_bytes and batch < most)


@jitable
def _fit(layers: int, room_bytes: float, layer_bytes: float, left: int) -> bool:
    return layers == 0 or (0 < layers <= left and layers * layer_bytes <= room_bytes)


@jitable
def _is_number(value: float, *args: Any) -> bool:
    return value == value


@jitable
def _is_positive(value: float, *args: Any) -> bool:
    return value > 0


@jitable
def _is_not_negative(value: float, *args: Any) -> bool:
    return value >= 0.0


@jitable
def _is_share(value: float, *args: Any) -> bool:
    return 0.0 < value <= 1.0


@jitable
def _is_in_unit(value: float, *args: Any) -> bool:
    return 0.0 <= value <= 1.0


@jitable
def _is_later(due_s: float, own: Any, table: Any, count: int, chip: int, now_s: float) -> bool:
    return due_s > now_s


@jitable
def _is_next(due_s: float, own: Any, w: Any, where: int, now_s: float) -> bool:
    return due_s > now_s


A_ROUTE: Final = Returns(
    int, "a row of the first `count` that takes requests and can hold `tokens`, or -1", _is_route
)
A_CANDIDATE: Final = Returns(
    int, "a row of the first `count` that can hold `tokens`, or -1", _is_candidate
)
JOINS: Final = Returns(
    bool, "true or false, true only where the request fits and the batch has a place", _may_join
)
LAYERS: Final = Returns(int, "a number of layers up to `left` that fit the room", _fit)
A_CHUNK: Final = Returns(int, "a whole number above 0", _is_positive)
A_STEP: Final = Returns(
    int,
    "a number of steps above 0, each with tokens: `plan.decodes` 0 or `n_decode`, room taken for "
    "them (`extend`), each `step_tokens` up to the prompt's rest, in all up to `longest_prompt`",
    _is_filled,
)
A_HOME: Final = Returns(int, "a row of the first `count`, or -1", _is_home)
A_COUNT: Final = Returns(int, "a whole number, at least 0", _is_not_negative)
YES_OR_NO: Final = Returns(bool, "true or false")
A_NUMBER: Final = Returns(float, "a number", _is_number)
SECONDS: Final = Returns(float, "seconds, at least 0", _is_not_negative)
A_SHARE_OR_NONE: Final = Returns(float, "a share, at least 0", _is_not_negative)
A_SHARE: Final = Returns(float, "a number in (0, 1]", _is_share)
UNIT: Final = Returns(float, "a number in [0, 1]", _is_in_unit)
NEXT: Final = Returns(float, "a time after `now_s`, or inf", _is_next)
DUE: Final = Returns(float, "a time after `now_s`, or inf", _is_later)
SHARE_OR_NEVER: Final = Returns(float, "a share above 0, or inf", _is_positive)
A_PLACE_IN_WEIGHTS: Final = Returns(
    str, "'host', 'hbm' or 'staged'", lambda where: where in ("host", "hbm", "staged")
)
