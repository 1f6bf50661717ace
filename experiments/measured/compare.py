"""Comparison of predictions with measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from c2c.cost import load_constants
from c2c.cost.constants import GENERIC
from experiments.measured.chips import FITTED, Chip, chip_of, shipped, whole
from experiments.measured.errors import Error, error_of
from experiments.measured.fit import GROUPS, KERNEL_CHIPS, fit_jointly, from_others
from experiments.measured.ops import Op, is_held_out, op_rows
from experiments.measured.rows import Rows

FITTED_OPS: Final = ("gemm", "prefill attention", "decode attention", "moe")

__all__ = ["Comparison", "Skipped", "compare", "errors_by", "unseen_chips"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A measurement and prediction, microseconds.

    Attributes:
      in_sample: whether constants were fitted to it.
      is_bound: whether an error bound is promised.
    """

    chip: str
    op: str
    size: str
    in_sample: bool
    is_bound: bool
    measured_us: float
    predicted_us: float


@dataclass(slots=True)
class Skipped:
    """Counts of uncompared rows by unknown name."""

    chips: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """Return a line for each kind of unknown name."""
        return [
            f"skipped, {subject} unknown: "
            + ", ".join(f"{name} ({count} rows)" for name, count in sorted(counted.items()))
            for subject, counted in (("chip", self.chips), ("model or precision", self.models))
            if counted
        ]


def compare(
    tables: Mapping[str, Rows], own: Mapping[str, Rows], skipped: Skipped
) -> list[Comparison]:
    """Return every row of the operations with its prediction."""
    ours = shipped()
    entries = [*op_rows(own), *(x for x in op_rows(tables) if chip_of(x[1]) not in ours)]
    seen = {(op.name, key) for op, _, rows in entries for key in _identities(op, rows)}
    result = []
    for op, system, rows in op_rows(tables):
        platform = chip_of(system)
        if platform is None:
            skipped.chips[system] += len(rows)
            continue
        chip = whole(platform).at(op.kernel)
        fitted = _is_fitted(op, chip)
        predicted = op.predict(rows, chip)
        table = zip(
            op.classes(rows), op.is_bound(rows), rows.keys(op.shape), _identities(op, rows),
            rows[op.measured], predicted, rows[_model_column(op)], strict=True,
        )  # fmt: skip
        for size, bound, shape, identity, measured, value, model in table:
            if not np.isfinite(value):
                skipped.models[str(model)] += 1
                continue
            result.append(Comparison(
                chip=platform, op=op.name, size=size, is_bound=bool(bound),
                in_sample=fitted and not is_held_out(shape) and (op.name, identity) in seen,
                measured_us=float(measured), predicted_us=float(value),
            ))  # fmt: skip
    return result


def _model_column(op: Op) -> str:
    return "model" if "model" in op.shape else op.chip_column


def _identities(op: Op, rows: Rows) -> list[str]:
    names = [n for n in rows.columns if n not in (op.measured, "us")]
    return rows.keys([n for n in names if n not in ("qkv", "o", "gate_up", "down", "elementwise")])


def _is_fitted(op: Op, chip: Chip) -> bool:
    if op.kernel:
        return chip.platform in KERNEL_CHIPS
    names = [n for g in GROUPS if g.op == op.name for n in g.typical]
    return bool(names) and chip.constants.sources[names[0]].kind == "fitted"


def unseen_chips(
    tables: Mapping[str, Rows], ops: Collection[str] = FITTED_OPS, *, jointly: bool = False
) -> dict[tuple[str, str], Error | None]:
    """Return fitted chips' errors as if unmeasured."""
    generic, result = load_constants(GENERIC), {}
    groups = {g.op: g for g in GROUPS if g.op in ops}
    joint = {name: fit_jointly(g, tables) for name, g in groups.items()} if jointly else {}
    for op, system, rows in op_rows(tables):
        platform = chip_of(system)
        if platform not in FITTED or op.name not in groups:
            continue
        first = next(iter(groups[op.name].typical))
        others = [n for n in FITTED if n != platform
                  and load_constants(n).sources[first].kind == "fitted"]  # fmt: skip
        if not others or (jointly and platform not in joint[op.name]):
            continue
        bound = rows.take(op.is_bound(rows))
        constants = (
            generic.having(joint[op.name][platform]) if jointly else from_others(platform, generic)
        )
        chip = whole(platform, constants)
        result[platform, op.name] = error_of(op.predict(bound, chip), bound[op.measured])
    return result


def errors_by(
    rows: list[Comparison], *names: str
) -> dict[tuple[Any, ...], tuple[Error | None, Error | None]]:
    """Return the errors (in sample, held out) by `names`."""
    groups: dict[tuple[Any, ...], list[Comparison]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, n) for n in names), []).append(row)
    return {
        key: (
            _error([r for r in members if r.in_sample]),
            _error([r for r in members if not r.in_sample]),
        )
        for key, members in groups.items()
    }


def _error(rows: list[Comparison]) -> Error | None:
    return error_of(
        np.array([r.predicted_us for r in rows]), np.array([r.measured_us for r in rows])
    )
