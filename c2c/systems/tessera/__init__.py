"""Tessera: the kernels of one model placed over unlike GPUs, by what their machine code touches."""

from c2c.systems.tessera.costs import Efficiency, kernel_s, work_of
from c2c.systems.tessera.ddg import Carried, Dependency, Graph, graph_of, program_key
from c2c.systems.tessera.interpreted import Placed, run_interpreted
from c2c.systems.tessera.kernels import Batch, StepKernel, step_kernels, transfers_of
from c2c.systems.tessera.monitor import (
    Group,
    Monitor,
    MonitorState,
    finish,
    groups_of,
    tick,
    wanted,
)
from c2c.systems.tessera.pieces import Piece, Pieces, cut, routes_of
from c2c.systems.tessera.plan import Options, Plan, Policy, Stage, cost, memory_of, stages_of
from c2c.systems.tessera.planner import blocks_of_layers, check_solver, plan, relaxation_s, sweep
from c2c.systems.tessera.touches import Touch, kernels_of, touches_of
from c2c.systems.tessera.ways import WAYS, Load, Way, best_way, ways
from c2c.systems.tessera.work import Gpus, Transfer, Weights, Work, joined
from c2c.systems.tessera.workers import MODES, Mode, Ran, Sent, WorkerError, run_placed

__all__ = [
    "MODES",
    "WAYS",
    "Batch",
    "Carried",
    "Dependency",
    "Efficiency",
    "Gpus",
    "Graph",
    "Group",
    "Load",
    "Mode",
    "Monitor",
    "MonitorState",
    "Options",
    "Piece",
    "Pieces",
    "Placed",
    "Plan",
    "Policy",
    "Ran",
    "Sent",
    "Stage",
    "StepKernel",
    "Touch",
    "Transfer",
    "Way",
    "Weights",
    "Work",
    "WorkerError",
    "best_way",
    "blocks_of_layers",
    "check_solver",
    "cost",
    "cut",
    "finish",
    "graph_of",
    "groups_of",
    "joined",
    "kernel_s",
    "kernels_of",
    "memory_of",
    "plan",
    "program_key",
    "relaxation_s",
    "routes_of",
    "run_interpreted",
    "run_placed",
    "stages_of",
    "step_kernels",
    "sweep",
    "tick",
    "touches_of",
    "transfers_of",
    "wanted",
    "ways",
    "work_of",
]
