"""Duties of every figure: answers fit their claims, and no claim of its paper is without one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatch

from experiments.claims import (
    Result,
    claim,
    compare,
    explanations,
    fidelity_rows,
    load_claims,
    totals,
)
from experiments.figure import Computed, Context

__all__ = ["QUICK", "agreement", "check_answers", "check_misses", "claims_without_answer"]

QUICK = Context(profile="quick", link_variant="measured", seeds=(0,))


def agreement(figure: Computed) -> dict[str, bool]:
    return {r.claim_id: compare(claim(r.claim_id), r).agrees for r in figure.results}


def check_answers(figure: Computed) -> None:
    assert len(figure.caption.split()) <= 50
    assert figure.finding
    agreement(figure)


def check_misses(results: Sequence[Result], least: int) -> None:
    """Assert that each of at least so many misses has a reason, and no hit."""
    found = totals(fidelity_rows(load_claims(), results, frozenset()))["misses"]
    assert found["all"] >= least
    assert (found["without_a_reason"], found["reasons_of_hits"]) == ([], [])


def claims_without_answer(
    system: str, answered: Iterable[str], elsewhere: Sequence[str]
) -> set[str]:
    """Return claims of a paper without answer or reason; `elsewhere` are patterns of names."""
    claims, explained = load_claims(), {*explanations()}
    assert not explained & {*answered}
    assert not any(claims[name].is_informational for name in explained)
    ours = {c.id for c in claims.values() if c.system == system and not c.is_informational}
    return {
        name
        for name in ours - {*answered} - explained
        if not any(fnmatch(name, f"{system}.{pattern}") for pattern in elsewhere)
    }
