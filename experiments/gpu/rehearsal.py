"""Rehearsals without a GPU: tests that hang, crash, fail or skip; host reads that hang or crash.

    make gpu ARGS="rehearsal --dry-run --case-limit 2 --first-case-limit 10"
    make gpu ARGS="first --dry-run --host-read hang --case-limit 6"

`C2C_REHEARSAL_START_S` sets the seconds that the section's process takes to start.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from typing import Any

from experiments.children import ROOT
from experiments.gpu import suite
from experiments.gpu.cases import Case, Context, HostFault, Scale

FAULTS = ROOT / "tests" / "experiments" / "gpu" / "faults.py"
LONG_S = 3600.0


def cases(_: Scale) -> list[Case]:
    """List the tests in the order of their file."""
    return suite.cases_of(suite.collected(FAULTS))


def serve(context: Context, requests: Iterable[str], say: suite.Say) -> None:
    """Run the requested tests."""
    time.sleep(float(os.environ.get("C2C_REHEARSAL_START_S", "0")))
    suite.serve(FAULTS, context, requests, say)


def break_host_reads(fault: HostFault) -> None:
    """Make every kernel of this process that gets an operand in host memory hang or crash.

    The two functions that prepare operands are replaced before other modules import them.
    """
    # Import arrays first: its copies are no reads by a kernel and keep the true functions.
    from pallas_kernels.host_memory import arrays, operand  # noqa: F401

    to_kernel, to_ref = operand.weight_operand, operand.host_ref

    def broken(w: Any) -> None:
        if not operand.in_host_memory(getattr(w, "data", w)):
            return
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(LONG_S)

    def weight_operand(w: Any, *, backend: operand.Backend) -> Any:
        broken(w)
        return to_kernel(w, backend=backend)

    def host_ref(w: Any) -> Any:
        broken(w)
        return to_ref(w)

    operand.weight_operand, operand.host_ref = weight_operand, host_ref
