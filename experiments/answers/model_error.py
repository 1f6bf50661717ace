"""Error of the cost model by chip."""

from __future__ import annotations

from functools import cache
from typing import Final

from c2c.cost import calibration_for, load_constants
from experiments.measured.chips import FITTED
from experiments.measured.compare import Skipped, compare, errors_by
from experiments.measured.fit import GROUPS
from experiments.measured.rows import OWN, read_folder

__all__ = ["held_out_error"]

BF16: Final = frozenset(
    group.op for group in GROUPS
)  # operations over narrow weights have a suffix


def held_out_error(platform: str) -> tuple[float, str]:
    """Return a chip's expected relative error of step times, with reason."""
    first = next(iter(GROUPS[0].typical))
    source = load_constants(calibration_for(platform)).sources[first]
    errors, unseen = _errors()
    measured = platform if platform in errors else source.chip
    if measured in errors:
        return errors[measured], f"90 % of measured BF16 operations of {measured} are within it"
    return (
        unseen,
        "no measurement of this chip: largest error on chips that nothing is fitted to",
    )


@cache
def _errors() -> tuple[dict[str, float], float]:
    tables = read_folder(OWN)
    rows = [row for row in compare(tables, tables, Skipped()) if row.is_bound]
    rows = [row for row in rows if row.op in BF16]
    error_of: dict[str, float] = {}
    for (chip, _), (_, held_out) in errors_by(rows, "chip", "op").items():
        if held_out is not None:
            error_of[chip] = max(error_of.get(chip, 0.0), held_out.p90)
    return error_of, max(error for chip, error in error_of.items() if chip not in FITTED)
