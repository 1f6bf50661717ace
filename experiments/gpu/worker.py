"""The child process that runs cases: one line of JSON in, one line out, for each.

    python -m experiments.gpu.worker <module> <context as JSON> <file descriptor for answers>

Answers have a descriptor of their own, so that nothing a library prints is taken for one. The child
keeps what its module caches (weights, compiled kernels) from case to case, and is simply ended if
one hangs.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

from experiments.gpu.cases import Context, Unmeasurable

MOST_REASON = 600


def answer_to(module: Any, spec: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return the rows of a case, or why there are none."""
    try:
        return {"status": "ok", "rows": module.measure(spec, context)}
    except Unmeasurable as skipped:
        return {"status": "skipped", "reason": str(skipped), "rows": []}
    except Exception as error:  # noqa: BLE001 - whatever a case does, the next one runs
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
        return {"status": "failed", "reason": reason[:MOST_REASON], "rows": []}


def main(arguments: list[str]) -> None:
    """Answer cases until standard input ends."""
    name, context, descriptor = arguments
    with os.fdopen(int(descriptor), "w", encoding="utf-8") as answers:

        def say(content: dict[str, Any]) -> None:
            answers.write(json.dumps(content) + "\n")
            answers.flush()

        module = importlib.import_module(name)
        getattr(module, "prepare", lambda _: None)(settings := Context(**json.loads(context)))
        say({"status": "ready"})
        for line in sys.stdin:
            say(answer_to(module, json.loads(line), settings))


if __name__ == "__main__":
    main(sys.argv[1:])
