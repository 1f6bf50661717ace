"""Child process that runs cases: for each a line of JSON in, and a line out.

    python -m experiments.gpu.worker <module> <context as JSON> <file descriptor for answers>

Answers have a descriptor of their own, so that no output of a library is mistaken for one. The
child keeps its module's caches (weights, compiled kernels) from case to case, and is killed if a
case hangs. A module with `serve(context, requests, say)` runs the cases itself, as pytest does.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from experiments.children import end_with_parent
from experiments.gpu.cases import Context, Unmeasurable

MOST_REASON = 600

Say = Callable[[dict[str, Any]], None]


def answer_to(module: Any, spec: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return the rows of a case, or the reason for none; `w_in` of `spec` sets the weights."""
    context = replace(context, weights=spec.pop("w_in", context.weights))
    try:
        return {"status": "ok", "rows": module.measure(spec, context)}
    except Unmeasurable as skipped:
        return {"status": "skipped", "reason": str(skipped), "rows": []}
    except Exception as error:  # noqa: BLE001 - whatever a case does, the next one runs
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
        return {"status": "failed", "reason": reason[:MOST_REASON], "rows": []}


def measure_each(module: Any, context: Context, requests: Iterable[str], say: Say) -> None:
    """Answer every request with `module.measure`."""
    getattr(module, "prepare", lambda _: None)(context)
    say({"status": "ready"})
    for line in requests:
        say(answer_to(module, json.loads(line), context))


def main(arguments: list[str]) -> None:
    """Answer cases until standard input ends."""
    end_with_parent()
    # C code writes the dump, so that it also works while Python waits for the device
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=False)
    name, context, descriptor = arguments
    with os.fdopen(int(descriptor), "w", encoding="utf-8") as answers:

        def say(content: dict[str, Any]) -> None:
            answers.write(json.dumps(content) + "\n")
            answers.flush()

        settings = Context(**json.loads(context))
        if settings.host_fault:  # before other modules import the replaced functions
            from experiments.gpu.rehearsal import break_host_reads

            break_host_reads(settings.host_fault)
        module = importlib.import_module(name)
        if hasattr(module, "serve"):
            module.serve(settings, sys.stdin, say)
        else:
            measure_each(module, settings, sys.stdin, say)


if __name__ == "__main__":
    main(sys.argv[1:])
