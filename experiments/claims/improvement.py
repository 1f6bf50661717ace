"""Improvements over the paper's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from c2c.errors import SettingError
from c2c.ranges import check_fields

__all__ = ["Better", "Improvement", "improvements_of"]

Better = Literal["less", "more"]
ROUNDING = 1e-9  # relative; the same numbers summed in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """A quantity under our rule and the replaced one, on equal requests.

    Attributes:
      better: "less" or "more".
      ours_by_seed, base_by_seed: one per seed, in order.
    """

    what: str
    unit: str
    better: Better
    ours: str
    base: str
    ours_by_seed: Sequence[float]
    base_by_seed: Sequence[float]

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.ours_by_seed or len(self.ours_by_seed) != len(self.base_by_seed):
            raise SettingError("ours_by_seed", self.ours_by_seed, "a value for each one of base")

    @property
    def gains(self) -> tuple[float, ...]:
        """Our gain with each seed; below 0: ours is worse."""
        sign = 1.0 if self.better == "more" else -1.0
        return tuple(
            sign * (ours - base)
            for ours, base in zip(self.ours_by_seed, self.base_by_seed, strict=True)
        )

    @property
    def verdict(self) -> str:
        """Verdict "better" or "worse" if seeds agree, else "no difference"."""
        gains = self.gains
        noise = ROUNDING * max(map(abs, self.base_by_seed))
        if min(gains) <= noise and max(gains) >= -noise:
            return "no difference"
        word = "better" if gains[0] > 0.0 else "worse"
        return word if len(gains) > 1 else f"{word}, one seed"

    def cells(self) -> tuple[str, ...]:
        """Return a table's row: quantity, ours, base, values, gain, verdict."""
        values = (self.ours_by_seed, self.base_by_seed, self.gains)
        return (
            self.what,
            self.ours,
            self.base,
            *(f"{_with_range(v)} {self.unit}" for v in values),
            self.verdict,
        )


def improvements_of(
    rows: Iterable[Mapping[str, Any]],
    pairs: Sequence[tuple[str, str]],
    columns: Mapping[str, tuple[str, str, Better]],
    *,
    where: Callable[[Mapping[str, Any]], str],
    by: str = "system",
) -> tuple[Improvement, ...]:
    """Return rules' improvements by quantity, pair and workload."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(where(row), []).append(row)
    return tuple(
        one
        for name, group in groups.items()
        for ours, base in pairs
        for one in _of_pair(group, ours, base, columns, name, by)
    )


def _of_pair(
    rows: Sequence[Mapping[str, Any]],
    ours: str,
    base: str,
    columns: Mapping[str, tuple[str, str, Better]],
    where: str,
    by: str,
) -> tuple[Improvement, ...]:
    row_of = {name: {r["seed"]: r for r in rows if r[by] == name} for name in (ours, base)}
    seeds = sorted(row_of[ours].keys() & row_of[base].keys())
    if not seeds:
        return ()
    return tuple(
        Improvement(
            what=f"{name}, {where}", unit=unit, better=better, ours=ours, base=base,
            ours_by_seed=[float(row_of[ours][s][column]) for s in seeds],
            base_by_seed=[float(row_of[base][s][column]) for s in seeds],
        )
        for column, (name, unit, better) in columns.items()
    )  # fmt: skip


def _with_range(values: Sequence[float]) -> str:
    middle = f"{median(values):.3g}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.3g} to {max(values):.3g})"
