"""Claims: the papers' printed numbers as data."""

from experiments.claims.compare import Comparison, Result, Sample, answer, compare
from experiments.claims.fidelity import (
    Row,
    brief,
    fidelity_rows,
    fidelity_table,
    print_fidelity,
    totals,
)
from experiments.claims.improvement import Better, Improvement, improvements_of
from experiments.claims.load import PAPERS, Claim, Explanation, claim, explanations, load_claims
from experiments.claims.summary import abstracts, print_summary
from experiments.claims.trends import predicate_holds

__all__ = [
    "PAPERS",
    "Better",
    "Claim",
    "Comparison",
    "Explanation",
    "Improvement",
    "Result",
    "Row",
    "Sample",
    "abstracts",
    "answer",
    "brief",
    "claim",
    "compare",
    "explanations",
    "fidelity_rows",
    "fidelity_table",
    "improvements_of",
    "load_claims",
    "predicate_holds",
    "print_fidelity",
    "print_summary",
    "totals",
]
