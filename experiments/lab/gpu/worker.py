"""Child process of a run: cases in, rows out, in lines of JSON."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import re
import signal
import sys
import traceback
from dataclasses import dataclass
from typing import Any, Final, Literal

from experiments.children import end_with_parent
from experiments.lab.gpu.cases import Unmeasurable

Backend = Literal["sm90", "reference"]

MODULES: Final = {
    "probe": "link",
    **dict.fromkeys(("smoke", "correctness"), "suite"),
    **dict.fromkeys(("decode", "mix", "tall"), "gemm"),
}
"""Module that measures a stage's cases, where its name is another one."""

_MOST_REASON: Final = 600
# Errors that make a process's context of the device unusable.
BROKEN: Final = re.compile(
    r"CUDA_ERROR_(ILLEGAL|LAUNCH_FAILED|LAUNCH_TIMEOUT|MISALIGNED|HARDWARE|ECC|ASSERT|UNKNOWN|INVALID_PC)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of all cases."""

    backend: Backend = "sm90"
    tiny: bool = False
    seed: int = 0
    folder: str = ""  # for programs that a case builds
    package: str = "experiments.lab.gpu"  # of the modules that measure

    @property
    def target_s(self) -> float:
        """Seconds to spend on one measurement, without compilation."""
        return 0.0 if self.tiny else 0.15

    @property
    def repetitions(self) -> tuple[int, int]:
        """Fewest and most repetitions of one measurement."""
        return (2, 2) if self.tiny else (3, 20)


def answer(request: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return a case's rows, or the reason for none."""
    stage = request["stage"]
    try:
        module = importlib.import_module(f"{settings.package}.{MODULES.get(stage, stage)}")
        if "compile" in request:
            getattr(module, "compile_all", lambda *_: None)(request["compile"], settings)
            return {"status": "ok"}
        return {"status": "ok", "rows": module.measure(request["spec"], settings)}
    except Unmeasurable as why:
        return {"status": "skipped", "reason": str(why)}
    except Exception as error:  # noqa: BLE001 - whatever a case does, the next one runs
        traceback.print_exc()
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return {"status": "failed", "reason": reason[:_MOST_REASON]}


def main(arguments: list[str]) -> None:
    """Answer requests until standard input ends, or the context is broken."""
    end_with_parent()
    # C code writes the dump, so that it also works while Python waits for the device
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=False)
    # Answers have a descriptor of their own, so that no library's output is mistaken for one.
    settings = Settings(**json.loads(arguments[0]))
    with os.fdopen(int(arguments[1]), "w", encoding="utf-8") as answers:
        for line in sys.stdin:
            reply = answer(json.loads(line), settings)
            reply["broken"] = bool(BROKEN.search(reply.get("reason", "")))
            answers.write(json.dumps(reply) + "\n")
            answers.flush()
            if reply["broken"]:
                return


if __name__ == "__main__":
    main(sys.argv[1:])
