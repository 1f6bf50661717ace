"""Null models: numbers of a paper that agree with one constant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from scipy import stats

from experiments.claims.compare import TOLERANCE, Comparison, Result, compare
from experiments.claims.load import Claim

__all__ = ["beside", "pairs_of"]

_NO_EFFECT: Final = {"ratio": 1.0, "x": 1.0, "percent": 0.0}
_FEWEST: Final = 4  # numbers for a rank correlation


class Answered(Protocol):
    """A claim, our result and comparison, or None."""

    @property
    def claim(self) -> Claim: ...
    @property
    def result(self) -> Result | None: ...
    @property
    def comparison(self) -> Comparison | None: ...
    @property
    def agrees(self) -> bool | None: ...


def beside(rows: Sequence[Answered]) -> dict[str, Any]:
    """Return agreements of ours and null models, and our errors."""
    answers = [
        row for row in rows if row.comparison is not None and row.comparison.ratio is not None
    ]
    units = dict.fromkeys(row.claim.unit for row in answers)
    constants: dict[str, float] = {}
    agree = dict.fromkeys(("constant_agree", "no_effect_agree"), 0)
    correlations: dict[str, float] = {}
    for unit in units:
        claims = [row.claim for row in answers if row.claim.unit == unit]
        constant, hits = _best_constant(claims)
        constants[unit], agree["constant_agree"] = constant, agree["constant_agree"] + hits
        if unit in _NO_EFFECT:
            agree["no_effect_agree"] += _hits(claims, _NO_EFFECT[unit])
        pairs = [p for row in answers if row.claim.unit == unit for p in pairs_of(row)]
        if len(pairs) >= _FEWEST and all(np.ptp(side) for side in zip(*pairs, strict=True)):
            printed, ours = zip(*pairs, strict=True)
            correlations[unit] = round(float(stats.spearmanr(printed, ours).statistic), 3)
    errors = [abs(ours / printed - 1.0) for row in answers for printed, ours in pairs_of(row)
              if printed]  # fmt: skip
    return {
        "numbers": len(answers),
        "agree": sum(bool(row.agrees) for row in answers),
        **agree,
        "median_error": round(float(np.median(errors)), 3) if errors else None,
        "rank_correlation": correlations,
        "constants": constants,
    }


def _best_constant(claims: Sequence[Claim]) -> tuple[float, int]:
    printed = {value for claim in claims for value in _numbers(claim.value)}
    # Agreements change only at the ends of the interval that agrees with a printed number.
    ends = {value * (1.0 + side * TOLERANCE) for value in printed for side in (-1, 0, 1)}
    hits = {end: _hits(claims, end) for end in sorted(ends)}
    best = max(hits, key=lambda end: hits[end])
    return best, hits[best]


def _hits(claims: Sequence[Claim], constant: float) -> int:
    return sum(
        compare(
            claim,
            Result(
                claim_id=claim.id, ours=_filled(claim.value, constant), unit=claim.unit,
                sample="out-of-sample",
            ),
        ).agrees
        for claim in claims
    )  # fmt: skip


def _filled(value: Any, constant: float) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(member, constant) for key, member in value.items()}
    is_text = isinstance(value, bool | str)
    return value if is_text else constant


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        for member in value.values():
            yield from _numbers(member)
    elif isinstance(value, list):
        for member in value:
            yield from _numbers(member)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def pairs_of(row: Answered) -> Iterator[tuple[float, float]]:
    """Yield pairs of printed and our numbers, without ranges."""
    assert row.result is not None
    printed, ours = row.claim.value, row.result.ours
    parts = printed.items() if isinstance(printed, Mapping) else [(None, printed)]
    for key, value in parts:
        answer = ours if key is None else ours.get(key)
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in (value, answer)):
            yield float(value), float(answer)
