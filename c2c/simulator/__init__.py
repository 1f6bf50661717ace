"""Discrete-event simulation of the serving loop on a virtual clock."""

from c2c.simulator.backend import Machine, World
from c2c.simulator.compiled import cache_dir, cache_key, compiled_drive
from c2c.simulator.machine import build_machine
from c2c.simulator.run import RunStats, Simulation, run_blocks

__all__ = [
    "Machine",
    "RunStats",
    "Simulation",
    "World",
    "build_machine",
    "cache_dir",
    "cache_key",
    "compiled_drive",
    "run_blocks",
]
