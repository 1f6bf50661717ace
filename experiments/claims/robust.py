"""Results under other readings."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import pyarrow as pa

from experiments.claims.classes import Reading, class_of, readings, readings_of
from experiments.claims.compare import Result, compare
from experiments.claims.load import claim

__all__ = ["Standing", "readings_table", "standing", "under_all", "under_readings"]

type Answers = Callable[..., Iterable[Result]]
Standing = Literal["robust", "fragile", "untried"]


def under_readings(
    results: Iterable[Result], answers: Answers, able: Collection[str], *, everything: bool = False
) -> tuple[Result, ...]:
    """Return results with values under each alternative reading."""
    defaults = tuple(map(_valued, results))
    by_claim: dict[str, dict[str, Any]] = {result.claim_id: {} for result in defaults}
    system = defaults[0].claim_id.split(".", 1)[0]
    for reading in readings(system).values():
        for value in reading.alternatives if reading.name in able else ():
            named = [r for r in defaults if reading in (readings_of(r.claim_id) or ())]
            claim_ids = {
                r.claim_id
                for r in named
                if _is_asked(r, by_claim[r.claim_id], everything=everything)
            }
            for result in answers(**{reading.name: value}) if claim_ids else ():
                if result.claim_id in claim_ids:
                    by_claim[result.claim_id][_label(reading, value)] = _valued(result).ours
    return tuple(replace(result, by_reading=by_claim[result.claim_id]) for result in defaults)


def under_all(
    answers: Answers, names: Sequence[str], system: str, *, together: int | None = None
) -> tuple[Result, ...]:
    """Return results with our values under combined readings."""
    choices = [readings(system)[name] for name in names]
    defaults = tuple(map(_valued, answers(**{r.name: r.default for r in choices})))
    by_claim: dict[str, dict[str, Any]] = {result.claim_id: {} for result in defaults}
    for values in product(*((r.default, *r.alternatives) for r in choices)):
        other = [(r, v) for r, v in zip(choices, values, strict=True) if v != r.default]
        if together is not None and len(other) > together:
            continue
        named = [
            result.claim_id for result in defaults
            if other and {r.name for r, _ in other}
            <= {r.name for r in readings_of(result.claim_id) or ()}
        ]  # fmt: skip
        label = ", ".join(_label(r, v) for r, v in other)
        value_of = {r.name: v for r, v in zip(choices, values, strict=True)}
        for result in answers(**value_of) if named else ():
            if result.claim_id in named:
                by_claim[result.claim_id][label] = _valued(result).ours
    return tuple(replace(result, by_reading=by_claim[result.claim_id]) for result in defaults)


def _valued(result: Result) -> Result:
    return replace(result, ours=result.ours()) if callable(result.ours) else result


def standing(result: Result) -> Standing:
    """Return `robust`, `fragile` or `untried` of an agreeing result under readings."""
    answers = _answers(result)
    if not all(answers.values()):
        return "fragile"
    named = readings_of(result.claim_id)
    if named is None:
        return "untried"
    labels = {_label(reading, value) for reading in named for value in reading.alternatives}
    return "robust" if labels <= answers.keys() else "untried"


def readings_table(results: Sequence[Result]) -> pa.Table:
    """Return our values by reading: claim, reading, ours (JSON), agrees."""
    rows = [
        {"claim": r.claim_id, "reading": name, "ours": json.dumps(ours), "agrees": agrees}
        for r in results
        for name, ours, agrees in (
            ("default", r.ours, compare(claim(r.claim_id), r).agrees),
            *((name, r.by_reading[name], agrees) for name, agrees in _answers(r).items()),
        )
    ]
    columns = [(name, pa.string()) for name in ("claim", "reading", "ours")]
    return pa.Table.from_pylist(rows, schema=pa.schema([*columns, ("agrees", pa.bool_())]))


def _is_asked(result: Result, readings: Mapping[str, Any], *, everything: bool) -> bool:
    if everything:
        return True
    entry = class_of(result.claim_id)
    is_predicted = entry is None or entry.name == "predicted"
    so_far = replace(result, by_reading=readings)
    return (
        is_predicted
        and result.sample == "out-of-sample"
        and compare(claim(result.claim_id), result).agrees
        and all(_answers(so_far).values())
    )


def _answers(result: Result) -> dict[str, bool]:
    target = claim(result.claim_id)
    alone = replace(result, by_reading={}, by_seed=(), by_model={})
    return {
        name: compare(target, replace(alone, ours=ours)).agrees
        for name, ours in result.by_reading.items()
    }


def _label(reading: Reading, value: Any) -> str:
    return f"{reading.name}={value}"
