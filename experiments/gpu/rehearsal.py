"""Section `rehearsal`: what a run leaves of tests that hang, crash, fail and are skipped.

    make gpu ARGS="rehearsal --dry-run --case-limit 2 --first-case-limit 10"

Needs no GPU. `C2C_REHEARSAL_START_S` has the process take so many seconds to start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from experiments.children import ROOT
from experiments.gpu import suite
from experiments.gpu.cases import Case, Context, Scale

FAULTS = ROOT / "tests" / "experiments" / "gpu" / "faults.py"


def cases(_: Scale) -> list[Case]:
    """List the tests, in the order of their file."""
    return suite.cases_of(suite.collected(FAULTS))


def serve(context: Context, requests: Iterable[str], say: suite.Say) -> None:
    """Run the tests that are asked for."""
    time.sleep(float(os.environ.get("C2C_REHEARSAL_START_S", "0")))
    suite.serve(FAULTS, context, requests, say)
