"""Simulate one serving system on one workload; prints a table and leaves a run folder.

    python -m experiments.simulate                                # the defaults of conf/config.yaml
    python -m experiments.simulate workload=file workload.path=trace.csv hardware=gh200 mig=7x12gb
    python -m experiments.simulate -m system=c2cserve,serverlessllm seed=0,1,2   # a sweep
    python -m experiments.simulate -m hydra/launcher=cores seed=range(8)         # on two cores
    python -m experiments.simulate --config-dir mydir system=mine   # a system of one's own
    python -m experiments.simulate --cfg job                        # all settings, nothing is run
    python -m experiments.simulate --help                           # what each of them means

A run that is complete is skipped; a sweep that was stopped goes on where it was, on any launcher.
The first run on a machine compiles the event loop once (about 20 s).
"""

from __future__ import annotations

import gc
import sys

from experiments.command import command

__all__ = ["main"]


def main() -> int:
    """Run what the command line says; return the exit status.

    0: every run is complete; 1: points of a sweep have no result; 2: a setting cannot work.
    """

    def run() -> int:
        gc.disable()  # imported objects stay: looking for garbage in them took a tenth of a run
        from experiments.simulation.cli import run_command_line

        gc.freeze()
        gc.enable()
        return run_command_line(sys.argv[1:])

    return command(run)


if __name__ == "__main__":
    sys.exit(main())
