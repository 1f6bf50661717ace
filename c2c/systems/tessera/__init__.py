"""Tessera: the kernels of one model placed over unlike GPUs, by what their machine code touches."""

from c2c.systems.tessera.ddg import Carried, Dependency, Graph, graph_of, program_key
from c2c.systems.tessera.interpreted import Placed, run_interpreted
from c2c.systems.tessera.plan import Options, Plan, Policy, Stage, cost, memory_of, stages_of
from c2c.systems.tessera.planner import blocks_of_layers, plan, relaxation_s, sweep
from c2c.systems.tessera.touches import Touch, kernels_of, touches_of
from c2c.systems.tessera.work import Gpus, Transfer, Weights, Work, joined

__all__ = [
    "Carried",
    "Dependency",
    "Gpus",
    "Graph",
    "Options",
    "Placed",
    "Plan",
    "Policy",
    "Stage",
    "Touch",
    "Transfer",
    "Weights",
    "Work",
    "blocks_of_layers",
    "cost",
    "graph_of",
    "joined",
    "kernels_of",
    "memory_of",
    "plan",
    "program_key",
    "relaxation_s",
    "run_interpreted",
    "stages_of",
    "sweep",
    "touches_of",
]
