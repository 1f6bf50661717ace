"""Tessera: placement of a model's kernels over unlike GPUs, from machine code."""

from c2c.systems.tessera.ddg import Carried, Dependency, Graph, graph_of, program_key
from c2c.systems.tessera.driver_execution import StepGraphs, running_on
from c2c.systems.tessera.lanes import PRICE, Costs, Lane, Lanes
from c2c.systems.tessera.layouts import SWITCH_S, SYSTEM, PairLayout, pair_layout
from c2c.systems.tessera.memory_accesses import Recording, Seen, recording_of
from c2c.systems.tessera.pair import Pair, fitted_claims, load_pair
from c2c.systems.tessera.pipeline import MODES, Pipelined, Steps, pipelined, steps_of
from c2c.systems.tessera.plan import (
    Options,
    Plan,
    Policy,
    Stage,
    cost,
    costs_of,
    memory_of,
    stages_of,
)
from c2c.systems.tessera.planner import blocks_of_layers, check_solver, plan, relaxation_s, sweep
from c2c.systems.tessera.rehearsal import Rehearsed, one_cut, rehearsed
from c2c.systems.tessera.schedule import Schedule, Segment, Send, schedule
from c2c.systems.tessera.touches import Touch, kernels_of, touches_of
from c2c.systems.tessera.ways import WAYS, Way, best_way, ways
from c2c.systems.tessera.work import Gpus, Work, joined, work_of
from c2c.systems.tessera.xla_kernels import program_work, xla_kernels

__all__ = [
    "MODES",
    "PRICE",
    "SWITCH_S",
    "SYSTEM",
    "WAYS",
    "Carried",
    "Costs",
    "Dependency",
    "Gpus",
    "Graph",
    "Lane",
    "Lanes",
    "Options",
    "Pair",
    "PairLayout",
    "Pipelined",
    "Plan",
    "Policy",
    "Recording",
    "Rehearsed",
    "Schedule",
    "Seen",
    "Segment",
    "Send",
    "Stage",
    "StepGraphs",
    "Steps",
    "Touch",
    "Way",
    "Work",
    "best_way",
    "blocks_of_layers",
    "check_solver",
    "cost",
    "costs_of",
    "fitted_claims",
    "graph_of",
    "joined",
    "kernels_of",
    "load_pair",
    "memory_of",
    "one_cut",
    "pair_layout",
    "pipelined",
    "plan",
    "program_key",
    "program_work",
    "recording_of",
    "rehearsed",
    "relaxation_s",
    "running_on",
    "schedule",
    "stages_of",
    "steps_of",
    "sweep",
    "touches_of",
    "ways",
    "work_of",
    "xla_kernels",
]
