"""Start of an engine as a plan of works."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from c2c.errors import SettingError, check_keys
from c2c.ranges import AboveZero, FromZero, In, SomeShare, check_value
from c2c.serving.tables.plans import RESOURCES, Plan, Weights, Work

__all__ = ["MAX_STARTS", "start_plan", "start_works"]

MAX_STARTS: Final = 16  # works of a start

_FIELDS: Final = ("name", "seconds", "moves", "over", "after", "when", "rank", "gbps", "share")


def start_works(entries: Sequence[Any], is_copied: bool) -> Plan:
    """Return the works of the settings, each checked."""
    if isinstance(entries, str | Mapping) or not isinstance(entries, Sequence):
        raise SettingError("system.start", entries, "a list of works")
    works: list[Work] = []
    for k, one in enumerate(entries):
        where = f"system.start[{k}]"
        work = one if isinstance(one, Work) else _work(one, where)
        _check_place(work, where, [w.name for w in works])
        works.append(work)
    if len(works) > MAX_STARTS:
        raise SettingError("system.start", f"{len(works)} works", f"at most {MAX_STARTS}")
    for case in ("cold", "held") if works and is_copied else ():
        moved = [w.draws.get("link") for w in works if w.when in ("always", case)]
        if sum(m.share for m in moved if isinstance(m, Weights)) < 1.0 - 1e-9:
            raise SettingError(
                "system.start",
                [w.name for w in works],
                f"works that move all weights over the link when {case}, as system.load copies "
                "them into HBM",
            )
    return tuple(works)


def start_plan(
    works: Plan, model: str, weights: Mapping[str, float], gbps: Mapping[str, float], *,
    is_cold: bool,
) -> Plan:  # fmt: skip
    """Return one model's start, its weights as bytes.

    Args:
      weights: bytes over disk (checkpoint) and link (for HBM).
      gbps: rates of disk and link for one start, 1e9 bytes/s.
      is_cold: whether the weights are on disk.

    Raises:
      SettingError: a mapping of seconds lacks this model.
    """
    here = [w for w in works if w.when in ("always", "cold" if is_cold else "held")]
    names = {w.name for w in here}
    plan = []
    for work in here:
        seconds: Any = work.seconds
        if isinstance(seconds, Mapping):
            if model not in seconds:
                raise SettingError(
                    f"system.start.{work.name}.seconds", dict(seconds), f"seconds of {model} too"
                )
            seconds = seconds[model]
        draws, alone_s = dict(work.draws), 0.0
        slowest = min([gbps[name] for name in work.draws], default=math.inf) * 1e9
        for name, moved in work.draws.items():
            if isinstance(moved, Weights):
                # What passes the disk is the whole checkpoint, what is only copied is held.
                amount = moved.share * weights["disk" if "disk" in work.draws else "link"]
                draws[name] = amount
                alone_s = amount / min(slowest, moved.gbps * 1e9)
        seconds += alone_s
        after = tuple(name for name in work.after if name in names)
        plan.append(replace(work, seconds=seconds, draws=draws, after=after))
    return tuple(plan)


def _work(entry: Any, where: str) -> Work:
    if not isinstance(entry, Mapping):
        raise SettingError(where, entry, "a mapping with the fields of a work, such as name")
    check_keys(entry, _FIELDS, where)
    if "name" not in entry:
        raise SettingError(f"{where}.name", None, "a name")
    lists = {key: _names(entry, key, where) for key in ("over", "after")}
    over = lists["over"] if "over" in entry else ("link",)
    if not over or len(set(over)) < len(over) or set(over) - set(RESOURCES):
        raise SettingError(f"{where}.over", over, f"some of {', '.join(RESOURCES)}")
    gbps, share = entry.get("gbps"), entry.get("share", 1.0)
    moved, when = entry.get("moves", "nothing"), entry.get("when", "always")
    check_value(gbps, AboveZero | None, f"{where}.gbps")
    check_value(share, SomeShare, f"{where}.share")
    check_value(moved, Literal["nothing", "weights"], f"{where}.moves")
    check_value(when, Literal["always", "cold", "held"], f"{where}.when")
    moves = moved == "weights"
    return Work(
        name=entry["name"],
        seconds=entry.get("seconds", 0.0),
        draws=dict.fromkeys(over, Weights(share, gbps or math.inf)) if moves else {},
        after=lists["after"],
        rank=entry.get("rank", 0),
        when=when,
    )


def _names(entry: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    names = entry.get(key, ())
    if isinstance(names, str):
        return (names,)
    if not isinstance(names, Sequence):
        raise SettingError(f"{where}.{key}", names, "a list of names")
    return tuple(names)


def _check_place(work: Work, where: str, before: Sequence[str]) -> None:
    name: Any = work.name  # settings may be of any type
    if not isinstance(name, str) or not name or name in before:
        raise SettingError(f"{where}.name", work.name, "a name of its own")
    check_value(work.seconds, FromZero | Mapping[str, FromZero], f"{where}.seconds", "seconds")
    for name in work.after:
        if name not in before:
            raise SettingError(
                f"{where}.after", name, f"a work before it ({', '.join(before) or 'there is none'})"
            )
    check_value(work.rank, Annotated[int, In("[-100, 100]")], f"{where}.rank")
