"""Rehearsals without a GPU: tests that hang, crash, fail and are skipped; host reads that do.

    make gpu ARGS="rehearsal --dry-run --case-limit 2 --first-case-limit 10"
    make gpu ARGS="first --dry-run --host-read hang --case-limit 6"

`C2C_REHEARSAL_START_S` has the process of the section take so many seconds to start.
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
    """List the tests, in the order of their file."""
    return suite.cases_of(suite.collected(FAULTS))


def serve(context: Context, requests: Iterable[str], say: suite.Say) -> None:
    """Run the tests that are asked for."""
    time.sleep(float(os.environ.get("C2C_REHEARSAL_START_S", "0")))
    suite.serve(FAULTS, context, requests, say)


def break_host_reads(fault: HostFault) -> None:
    """Have every kernel of this process that is given host memory hang or crash.

    The two functions that give kernels their operands are replaced, before others take them.
    """
    # Arrays come first: their copies, which are no reads by a kernel, keep what they have taken.
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
