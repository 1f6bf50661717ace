"""The papers' printed numbers as data, and how ours compare with them."""

from experiments.claims.compare import Comparison, Result, Sample, compare
from experiments.claims.fidelity import (
    Row,
    fidelity_rows,
    fidelity_table,
    print_fidelity,
    totals,
)
from experiments.claims.load import Claim, Explanation, claim, explanations, load_claims
from experiments.claims.trends import predicate_holds

__all__ = [
    "Claim",
    "Comparison",
    "Explanation",
    "Result",
    "Row",
    "Sample",
    "claim",
    "compare",
    "explanations",
    "fidelity_rows",
    "fidelity_table",
    "load_claims",
    "predicate_holds",
    "print_fidelity",
    "totals",
]
