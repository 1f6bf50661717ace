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
from c2c.systems.tessera.plan import Options, Plan, Policy, Stage, cost, memory_of, stages_of
from c2c.systems.tessera.planner import blocks_of_layers, check_solver, plan, relaxation_s, sweep
from c2c.systems.tessera.touches import Touch, kernels_of, touches_of
from c2c.systems.tessera.ways import WAYS, Load, Way, best_way, ways
from c2c.systems.tessera.work import Gpus, Transfer, Weights, Work, joined

__all__ = [
    "WAYS",
    "Batch",
    "Carried",
    "Dependency",
    "Efficiency",
    "Gpus",
    "Graph",
    "Group",
    "Load",
    "Monitor",
    "MonitorState",
    "Options",
    "Placed",
    "Plan",
    "Policy",
    "Stage",
    "StepKernel",
    "Touch",
    "Transfer",
    "Way",
    "Weights",
    "Work",
    "best_way",
    "blocks_of_layers",
    "check_solver",
    "cost",
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
    "run_interpreted",
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
