"""Simulate one serving system on one workload; print a table and write a run folder.

    c2c simulate                                # the defaults of conf/config.yaml
    c2c simulate workload=file workload.path=trace.csv hardware=gh200 mig=7x12gb
    c2c simulate -m system=c2cserve,serverlessllm seed=0,1,2   # a sweep
    c2c simulate -m hydra/launcher=cores seed=range(8)         # on two cores
    c2c simulate --config-dir mydir system=mine   # a system of one's own
    c2c simulate --cfg job                        # print all settings, run none
    c2c simulate --help                           # the meaning of each setting

Complete runs are skipped: the same command resumes a stopped sweep. The first run on a machine
compiles the event loop (about 20 s).
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

from experiments.command import command

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run the command; return 1 without result, 2 for a wrong setting."""

    def run() -> int:
        gc.disable()  # imported objects stay; collecting among them took a tenth of a run
        if plain := not any(a.startswith("-") or "hydra" in a for a in arguments):
            from experiments.simulation.single_run import simulate_alone
        else:
            from experiments.simulation.cli import run_command_line
        gc.freeze()
        gc.enable()
        if not plain:
            return run_command_line(arguments)
        simulate_alone(arguments)
        return 0

    return command(run, arguments)
