"""Simulate one serving system on one workload; print a table and write a run folder.

    python -m experiments.simulate                                # the defaults of conf/config.yaml
    python -m experiments.simulate workload=file workload.path=trace.csv hardware=gh200 mig=7x12gb
    python -m experiments.simulate -m system=c2cserve,serverlessllm seed=0,1,2   # a sweep
    python -m experiments.simulate -m hydra/launcher=cores seed=range(8)         # on two cores
    python -m experiments.simulate --config-dir mydir system=mine   # a system of one's own
    python -m experiments.simulate --cfg job                        # print all settings, run none
    python -m experiments.simulate --help                           # the meaning of each setting

Complete runs are skipped, so the same command resumes a stopped sweep, on any launcher. The first
run on a machine compiles the event loop (about 20 s).
"""

from __future__ import annotations

import gc
import sys

from experiments.command import command

__all__ = ["main"]


def main() -> int:
    """Run the command; return the exit status.

    0: every run is complete; 1: points of a sweep have no result; 2: a setting is invalid.
    """

    def run() -> int:
        gc.disable()  # imported objects stay; collecting among them took a tenth of a run
        from experiments.simulation.cli import run_command_line

        gc.freeze()
        gc.enable()
        return run_command_line(sys.argv[1:])

    return command(run)


if __name__ == "__main__":
    sys.exit(main())
