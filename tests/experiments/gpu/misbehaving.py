"""A section's module for tests: its cases do what their spec says, good or bad."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.gpu.cases import Context, Row, Unmeasurable


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    print("printed by a library")  # must not be taken for an answer
    if "mark" in spec:
        with Path(spec["mark"]).open("a") as marks:
            marks.write(f"{spec['do']}\n")
    match spec["do"]:
        case "hang":
            time.sleep(600)
        case "die":
            print("last words", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise ValueError("k=3: expected 4")
        case "skip":
            raise Unmeasurable("not here")
        case "two":
            return [{"time_s": 1.0, "pid": os.getpid()}, {"time_s": 2.0, "pid": os.getpid()}]
    return [{"time_s": 1.0, "pid": os.getpid(), "seed": context.seed}]
