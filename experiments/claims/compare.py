"""Comparison of our results with the claims that they answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from c2c.errors import SettingError
from c2c.ranges import check_fields
from experiments.claims.load import Claim, claim
from experiments.claims.trends import predicate_holds

__all__ = ["POINTS", "TOLERANCE", "Comparison", "Result", "answer", "compare"]

Sample = Literal["in-sample", "out-of-sample", "identity"]
TOLERANCE = 0.2  # a number is reproduced within 20% of the printed one
POINTS = 1.0  # a share of 50% or more: within 20% of its complement to 100%, or one point


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Our answer to a claim.

    Attributes:
      ours: a number, [low, high] (or inside), a mapping, or a predicate's values; before
        `under_readings` a function.
      sample: "in-sample" (an input of a fit), "identity" (arithmetic of public inputs) or
        "out-of-sample".
      link_variant: "": independent of it.
      by_seed: of each seed, like `ours`.
      by_model: of each model, if the paper names none and `ours` is the mean.
      by_reading: under alternatives of open settings.
    """

    claim_id: str
    ours: Any
    unit: str
    sample: Sample
    link_variant: str = ""
    note: str = ""
    by_seed: Sequence[Any] = ()
    by_model: Mapping[str, Any] = field(default_factory=dict)
    by_reading: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)


def answer(
    claim_id: str, ours: Any, note: str = "", sample: Sample = "out-of-sample", **more: Any
) -> Result:
    """Return a result in the claim's unit; `more`: fields of `Result`."""
    unit = claim(claim_id).unit
    return Result(claim_id=claim_id, ours=ours, unit=unit, sample=sample, note=note, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of a result with its claim.

    Attributes:
      ratio: ours over published, the worst of several.
      within_20: whether all numbers are, see `compare`; None without numbers.
      agrees: within 20%, on the bound's right side, or a predicate holds; not `in_band`, not
        `apart`.
      in_band: whether a trend holds for `ours`, but not with every seed.
      apart: models that disagree unlike their mean.
    """

    ratio: float | None
    within_20: bool | None
    agrees: bool
    in_band: bool = False
    apart: tuple[str, ...] = ()


def compare(claim: Claim, result: Result) -> Comparison:
    """Compare a result with its claim.

    A number agrees within 20%; a bound if ours is on its right side.

    Shares from 50 to 100 percent compare complements: 20%, or one percentage point.

    Trends must hold with each seed, means with each model.
    """
    if result.claim_id != claim.id:
        raise SettingError("claim_id", result.claim_id, claim.id)
    if result.unit != claim.unit:
        raise SettingError(f"{claim.id}.unit", result.unit, claim.unit)
    parts = list(_parts(claim.value, result.ours, claim, claim.id))
    ratios = [p.ratio for p in parts if p.ratio is not None]
    agrees = all(p.agrees for p in parts)
    in_band = (
        agrees
        and not ratios
        and not all(
            part.agrees
            for seed, ours in enumerate(result.by_seed)
            for part in _parts(claim.value, ours, claim, f"{claim.id}.by_seed[{seed}]")
        )
    )
    apart = tuple(
        model
        for model, ours in result.by_model.items()
        for part in _parts(claim.value, ours, claim, f"{claim.id}.by_model[{model}]")
        if agrees and not part.agrees
    )
    return Comparison(
        ratio=max(ratios, key=_distance) if ratios else None,
        within_20=not apart and all(p.within_20 for p in parts if p.within_20 is not None)
        if ratios
        else None,
        agrees=agrees and not in_band and not apart,
        in_band=in_band,
        apart=apart,
    )


def _distance(ratio: float) -> float:
    return abs(math.log(ratio)) if ratio > 0 else math.inf


def _parts(published: Any, ours: Any, claim: Claim, where: str) -> Iterator[Comparison]:
    if isinstance(published, Mapping):
        if not isinstance(ours, Mapping) or not set(published) <= set(ours):
            raise SettingError(where, ours, f"a mapping with {', '.join(map(str, published))}")
        for key, value in published.items():
            if isinstance(value, str) and not isinstance(ours[key], str):
                yield _answer(predicate_holds(value, key, ours))
            else:
                yield from _parts(value, ours[key], claim, f"{where}.{key}")
    elif isinstance(published, bool | str):
        yield _answer(ours == published)
    elif isinstance(published, int | float):
        yield _number(float(published), _real(ours, where), claim)
    elif _is_range(published):
        low, high = (float(v) for v in published)
        if isinstance(ours, Sequence) and not isinstance(ours, str) and len(ours) == 2:
            yield _number(low, _real(ours[0], where), claim)
            yield _number(high, _real(ours[1], where), claim)
        else:
            yield _range(low, high, _real(ours, where), claim)
    else:
        yield _answer(ours == published)


def _answer(agrees: bool) -> Comparison:
    return Comparison(ratio=None, within_20=None, agrees=agrees)


def _real(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise SettingError(where, value, "a number")
    return float(value)


def _is_close(published: float, ours: float, claim: Claim) -> bool:
    allowed = TOLERANCE * abs(published)
    if claim.unit == "percent" and not claim.metric.endswith("gain") and 50 <= published <= 100:
        allowed = max(TOLERANCE * (100.0 - published), POINTS)
    return abs(ours - published) <= allowed * (1 + 1e-12)  # 1.2 - 1 is more than 0.2 in floats


def _number(published: float, ours: float, claim: Claim) -> Comparison:
    close = _is_close(published, ours, claim)
    agrees = {
        "at_least": ours >= published,
        "more_than": ours > published,
        "at_most": ours <= published,
        "less_than": ours < published,
    }.get(claim.qualifier, close)
    ratio = ours / published if published else None
    return Comparison(ratio=ratio, within_20=close, agrees=agrees)


def _is_range(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(v, int | float) and not isinstance(v, bool) for v in value)
        and value[0] <= value[1]
    )


def _range(low: float, high: float, ours: float, claim: Claim) -> Comparison:
    nearest = min(max(ours, low), high)
    close = _is_close(nearest, ours, claim)
    return Comparison(ratio=ours / nearest if nearest else None, within_20=close, agrees=close)
