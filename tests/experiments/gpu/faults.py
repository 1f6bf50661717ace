"""A module of cases that work, fail, hang and crash."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.lab.gpu.cases import Unmeasurable


def compile_all(specs: Sequence[Mapping[str, Any]], _: object) -> None:
    if any(spec.get("compile") == "crash" for spec in specs):
        os.kill(os.getpid(), signal.SIGKILL)


def measure(spec: Mapping[str, Any], _: object) -> list[dict[str, Any]]:
    match spec["what"]:
        case "work":
            return [{"process": os.getpid()}]
        case "fail":
            raise ValueError("row 5: worst ratio 4.1")
        case "skip":
            raise Unmeasurable("no such thing here")
        case "broken":
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS: the context is gone")
        case "hang":
            time.sleep(600)
        case _:
            os.kill(os.getpid(), signal.SIGSEGV)
    return []
