"""Section `correctness`: the tests marked gpu, each a case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from experiments.children import ROOT
from experiments.gpu import suite
from experiments.gpu.cases import Case, Context, Scale

FOLDER = ROOT / "tests" / "gpu"
SMOKE = "test_smoke.py"
ORDER = (
    "test_host_operand.py",
    "test_hybrid_gemm.py",
    "test_quantized_gemm.py",
    "test_grouped_gemm.py",
    "test_residency.py",
    "test_attention.py",
    "test_gather_rows.py",
    "test_compile_counts.py",
    "test_transformer.py",
    "test_shared_pool.py",
    "test_hybrid_gemm_long.py",
)
FIRST = 2  # tests of each function that run before all others


def cases(scale: Scale) -> list[Case]:
    """List the tests: `FIRST` of each function, then the others unless the run is quick."""
    if scale == "tiny":  # small enough for a CPU
        listed = suite.collected(FOLDER / "test_gather_rows.py")
        return suite.cases_of(one for one in listed if one["function"].endswith("::test_types"))
    found = [one for one in suite.collected(FOLDER) if _file(one) != SMOKE]
    first, others = in_order(found)
    return suite.cases_of(first if scale == "quick" else [*first, *others])


def in_order(listed: Iterable[suite.Listed]) -> tuple[list[suite.Listed], list[suite.Listed]]:
    """Return the first tests of every function, and all others; files in the order of `ORDER`.

    The first are both ends of a function's list: parameters are in order, so these differ most.
    """
    first: list[suite.Listed] = []
    others: list[suite.Listed] = []
    for _, of in groupby(sorted(listed, key=_rank), key=lambda one: one["function"]):
        tests = list(of)
        ends = tests if len(tests) <= FIRST else [tests[0], tests[-1]]
        first += ends
        others += [one for one in tests if one not in ends]
    return first, others


def serve(context: Context, requests: Iterable[str], say: suite.Say) -> None:
    """Run the requested tests."""
    suite.serve(FOLDER, context, requests, say)


def _file(one: suite.Listed) -> str:
    return str(one["test"]).partition("::")[0]


def _rank(one: suite.Listed) -> tuple[int, str]:
    names: Sequence[str] = ORDER
    file = _file(one)
    return (names.index(file) if file in names else len(names), file)
