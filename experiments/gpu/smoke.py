"""Section `smoke`: small tests that show within a minute whether the kernels work here at all."""

from __future__ import annotations

from collections.abc import Iterable

from experiments.gpu import suite
from experiments.gpu.cases import Case, Context, Scale
from experiments.gpu.correctness import FOLDER, SMOKE


def cases(_: Scale) -> list[Case]:
    """List the tests in the order of their file, each in a group of its own."""
    return suite.cases_of(
        {**one, "function": one["test"]} for one in suite.collected(FOLDER / SMOKE)
    )


def serve(context: Context, requests: Iterable[str], say: suite.Say) -> None:
    """Run the requested tests."""
    suite.serve(FOLDER / SMOKE, context, requests, say)
