"""The start of an engine as a plan: a small graph of works, stated as data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from c2c.errors import SettingError

__all__ = ["MAX_WORKS", "RESOURCES", "START_WHEN", "StartWork", "start_works"]

# What works share on a chip, by number in the simulator's tables.
RESOURCES: Final = ("link", "disk")
MAX_WORKS: Final = 16

# Which starts a work is part of, by number in the simulator's tables.
START_WHEN: Final = ("always", "cold", "held")

_MOVES: Final = ("nothing", "weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWork:
    """One work of a start.

    Attributes:
      name: other works name it in `after`.
      seconds: that it takes beside what it moves; a mapping gives each model's, by its spec's name.
      moves: the model's weights, or nothing.
      over: what carries them, all at once (a pipeline): some of `RESOURCES`.
      after: works that end before this one begins; () begins at once.
      when: always, only if the weights are on disk (cold), or only if host memory has them (held).
      gbps: the most that it moves, whatever carries it; None: no limit of its own.
      share: of the weights that it moves; the works that take them over the link have all of them.
      rank: a resource serves works of a higher rank first; running steps have 0.
    """

    name: str
    seconds: float | Mapping[str, float] = 0.0
    moves: str = "nothing"
    over: tuple[str, ...] = ("link",)
    after: tuple[str, ...] = ()
    when: str = "always"
    rank: int = 0
    gbps: float | None = None
    share: float = 1.0

    def seconds_of(self, model: str) -> float:
        """Return what it takes for a model, by its spec's name.

        Raises:
          SettingError: seconds are given by model, and not this one's.
        """
        if not isinstance(self.seconds, Mapping):
            return self.seconds
        if model not in self.seconds:
            raise SettingError(
                f"system.start.{self.name}.seconds", dict(self.seconds), f"seconds of {model} too"
            )
        return self.seconds[model]


def start_works(given: Sequence[Any], is_copied: bool) -> tuple[StartWork, ...]:
    """Return the works that settings describe, each checked.

    Args:
      given: a mapping a work, or works; () is the one work that `system.load` describes.
      is_copied: whether the weights have to get into HBM.

    Raises:
      SettingError: an unknown field, a value that cannot work, or no work copies the weights.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise SettingError("system.start", given, "a list of works")
    works: list[StartWork] = []
    for k, one in enumerate(given):
        where = f"system.start[{k}]"
        work = one if isinstance(one, StartWork) else _work(one, where)
        _check(work, where, [w.name for w in works])
        works.append(work)
    if len(works) > MAX_WORKS:
        raise SettingError("system.start", f"{len(works)} works", f"at most {MAX_WORKS}")
    if works and is_copied:
        for case in ("cold", "held"):
            copied = sum(
                w.share
                for w in works
                if w.moves == "weights" and "link" in w.over and w.when in ("always", case)
            )
            if copied < 1.0 - 1e-9:
                raise SettingError(
                    "system.start",
                    [w.name for w in works],
                    f"works that move all weights over the link when {case}, as system.load copies "
                    "them into HBM",
                )
    return tuple(works)


def _work(given: Any, where: str) -> StartWork:
    if not isinstance(given, Mapping):
        raise SettingError(where, given, "a mapping with the fields of a work, such as name")
    known = [f.name for f in fields(StartWork)]
    for key in given:
        if key not in known:
            raise SettingError(f"{where}.{key}", given[key], f"a key among {', '.join(known)}")
    if "name" not in given:
        raise SettingError(f"{where}.name", None, "a name")
    values = dict(given)
    for key in ("over", "after"):
        if isinstance(values.get(key), str):
            values[key] = (values[key],)
        if key in values:
            if not isinstance(values[key], Sequence):
                raise SettingError(f"{where}.{key}", values[key], "a list of names")
            values[key] = tuple(values[key])
    return StartWork(**values)


def _check(work: StartWork, where: str, before: Sequence[str]) -> None:
    name: Any = work.name  # settings may be of any type
    if not isinstance(name, str) or not name or name in before:
        raise SettingError(f"{where}.name", work.name, "a name of its own")
    by_model: Any = work.seconds if isinstance(work.seconds, Mapping) else {"": work.seconds}
    for model, seconds in by_model.items():
        field = f"{where}.seconds.{model}".rstrip(".")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise SettingError(field, seconds, "a number")
        if not 0.0 <= seconds < math.inf:
            raise SettingError(field, seconds, "seconds, at least 0")
    gbps: Any = work.gbps
    if gbps is not None and (
        isinstance(gbps, bool) or not isinstance(gbps, int | float) or not 0.0 < gbps < math.inf
    ):
        raise SettingError(f"{where}.gbps", gbps, "GB/s above 0, or null")
    share: Any = work.share
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 < share <= 1.0:
        raise SettingError(f"{where}.share", work.share, "a number in (0, 1]")
    for field, value, allowed in (("moves", work.moves, _MOVES), ("when", work.when, START_WHEN)):
        if value not in allowed:
            raise SettingError(f"{where}.{field}", value, f"one of {', '.join(allowed)}")
    if not work.over or len(set(work.over)) < len(work.over) or set(work.over) - set(RESOURCES):
        raise SettingError(f"{where}.over", work.over, f"some of {', '.join(RESOURCES)}")
    for name in work.after:
        if name not in before:
            raise SettingError(
                f"{where}.after", name, f"a work before it ({', '.join(before) or 'there is none'})"
            )
    rank: Any = work.rank
    if isinstance(rank, bool) or not isinstance(rank, int) or abs(rank) > 100:
        raise SettingError(f"{where}.rank", work.rank, "a whole number from -100 to 100")
