"""Discrete-event simulation of the serving loop on a virtual clock."""

from c2c.simulator.collect import Collected, estimate, simulate_in_memory
from c2c.simulator.compiled_loop import compiled_drive, is_compiled
from c2c.simulator.machine import build_machine
from c2c.simulator.run import RunStats, Simulation, run_blocks
from c2c.simulator.tables import FAILURES, phases_table, requests_table
from c2c.simulator.trial import try_policies
from c2c.simulator.works.world import Machine, World

__all__ = [
    "FAILURES",
    "Collected",
    "Machine",
    "RunStats",
    "Simulation",
    "World",
    "build_machine",
    "compiled_drive",
    "estimate",
    "is_compiled",
    "phases_table",
    "requests_table",
    "run_blocks",
    "simulate_in_memory",
    "try_policies",
]
