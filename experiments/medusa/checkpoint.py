"""Driver checkpoints of a whole process, an alternative to restored graphs.

    python -m experiments.medusa.checkpoint computing:0

A second process starts, captures and instantiates its graphs. The driver then locks it, moves its
GPU memory to host memory (`cuCheckpointProcess*`), restores and unlocks it. Afterwards its graphs
must give the same results as before. Prints seconds as JSON. Needs driver 570 or later.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from c2c.errors import DataError
from experiments.children import Lines, answer_of, environment
from experiments.command import command
from experiments.medusa.observing import outputs_of
from experiments.medusa.one_process import check_what, started

__all__ = ["ABSENT", "main", "seconds_of"]

LIMIT_S = 120.0
# Errors of a driver without these calls, or without permission to use them.
ABSENT = ("FunctionNotFound", "not found", "NOT_SUPPORTED", "NOT_PERMITTED")


def seconds_of(what: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the seconds to freeze and restore a process, and the bytes of its memory.

    Args:
      what: graphs of the process; see `one_process`.
      env: environment of the processes.

    Raises:
      DataError: the driver failed, or the graphs' results changed.
    """
    line = [sys.executable, "-m", "experiments.medusa.checkpoint", what]
    found: dict[str, Any] = answer_of(
        line,
        lambda why: DataError(f"checkpoint of {what}", why.rstrip(".")),
        limit_s=LIMIT_S,
        env=environment() | dict(env),
    )
    return found


def _hold(what: str) -> None:
    """Run as the process: print digests of memory and results at start and for each input line."""
    process = started("capture", "driver", what, None)
    process.capture()
    regions = {batch: process.regions(batch) for batch in process.graphs}
    executables = {b: process.device.instantiate(g) for b, g in process.graphs.items()}

    device, live = process.device, process.recorder.live
    held = {address: device.read(address, nbytes) for address, nbytes in live.items()}

    def say() -> None:
        there = hashlib.sha256(b"".join(device.read(a, n) for a, n in live.items())).hexdigest()
        left = outputs_of(device, executables.__getitem__, regions, process.recorder.addresses)
        for address, data in held.items():  # graphs accumulate: restore their inputs each time
            device.write(address, data)
        told = {"memory": there, "outputs": left}
        print(json.dumps({"told": told, "held_bytes": process.recorder.held_bytes}), flush=True)

    say()
    for _ in sys.stdin:
        say()


def _frozen(what: str) -> dict[str, Any]:
    from c2c.systems.program.driver.calls import bindings, checked

    driver = bindings()
    checked(driver.cuInit, 0)
    command = [sys.executable, "-m", "experiments.medusa.checkpoint", "--hold", what]
    with Lines(command, apart=False) as holder:
        before = holder.line()
        if not before:
            raise DataError(what, f"the capturing process ended ({holder.why})")

        def timed(call: Callable[..., Any]) -> float:
            begin = time.perf_counter()
            checked(call, holder.process.pid, None)
            return time.perf_counter() - begin

        seconds = {
            name: timed(call)
            for name, call in (
                ("lock_s", driver.cuCheckpointProcessLock),
                ("checkpoint_s", driver.cuCheckpointProcessCheckpoint),
                ("restore_s", driver.cuCheckpointProcessRestore),
                ("unlock_s", driver.cuCheckpointProcessUnlock),
            )
        }
        after = holder.line() if holder.tell("again") else b""
    if json.loads(after or b"{}").get("told") != json.loads(before)["told"]:
        raise DataError(what, "memory or graph results of the restored process differ")
    return {**seconds, "held_bytes": json.loads(before)["held_bytes"]}


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit status."""

    def run() -> int:
        from c2c.systems.program import DeviceFault

        is_held, what = arguments[:-1] == ["--hold"], arguments[-1] if arguments else ""
        check_what("driver", what)
        try:
            if is_held:
                _hold(what)
            else:
                print(json.dumps(_frozen(what)))
        except DeviceFault as problem:
            raise DataError("device=driver", str(problem)) from problem
        return 0

    return command(run, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
