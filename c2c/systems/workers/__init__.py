"""Execution of a jax function in pieces over several devices: a worker for each, and sends."""

from c2c.systems.workers.groups import Group, groups_of
from c2c.systems.workers.pieces import Piece, Pieces, Update, cut, routes_of
from c2c.systems.workers.replicas import Replicas, chains_of
from c2c.systems.workers.threads import MODES, Mode, Ran, Sent, WorkerError, run_placed
from c2c.systems.workers.virtual_clock import VirtualClock

__all__ = [
    "MODES",
    "Group",
    "Mode",
    "Piece",
    "Pieces",
    "Ran",
    "Replicas",
    "Sent",
    "Update",
    "VirtualClock",
    "WorkerError",
    "chains_of",
    "cut",
    "groups_of",
    "routes_of",
    "run_placed",
]
