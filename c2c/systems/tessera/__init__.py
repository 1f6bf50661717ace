"""Tessera: the kernels of one model placed over unlike GPUs, by what their machine code touches."""

from c2c.systems.tessera.costs import Efficiency, kernel_s, step_s, work_of
from c2c.systems.tessera.ddg import Carried, Dependency, Graph, graph_of, program_key
from c2c.systems.tessera.devices import TimedGpu, timed_gpu, timed_gpus
from c2c.systems.tessera.groups import Group, groups_of
from c2c.systems.tessera.interpreted import Placed, run_interpreted
from c2c.systems.tessera.kernels import Batch, StepKernel, step_kernels, transfers_of
from c2c.systems.tessera.lanes import PRICE, Costs, Lane, Lanes
from c2c.systems.tessera.launched import Launched, running_on
from c2c.systems.tessera.layouts import SWITCH_S, SYSTEM, PairLayout, pair_layout
from c2c.systems.tessera.other_models import (
    MAMBA,
    SD35,
    VISION,
    diffusion_kernels,
    mamba_kernels,
    vision_kernels,
)
from c2c.systems.tessera.overlap import Overlapped, overlapped, overlapped_s
from c2c.systems.tessera.pair import Pair, fitted_claims, load_pair, pair_of
from c2c.systems.tessera.parametric import Range, cut_curve
from c2c.systems.tessera.pieces import Piece, Pieces, Update, cut, routes_of
from c2c.systems.tessera.pipeline import Pipelined, Steps, pipelined, steps_of
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
from c2c.systems.tessera.recording import Recording, Seen, recording_of
from c2c.systems.tessera.rehearsal import Rehearsed, one_cut, rehearsed
from c2c.systems.tessera.replicas import Replicas, chains_of
from c2c.systems.tessera.robust import Robust, robust_plan
from c2c.systems.tessera.schedule import Schedule, Segment, Send, schedule
from c2c.systems.tessera.served import Load, Phase, Served, decoder, diffusion, state_space
from c2c.systems.tessera.streamed import StreamedWay, slice_gpu, streamed_ways, streamed_work
from c2c.systems.tessera.tensor_parallel import ranked, tensor_parallel
from c2c.systems.tessera.touches import Touch, kernels_of, touches_of
from c2c.systems.tessera.virtual_clock import VirtualClock
from c2c.systems.tessera.ways import WAYS, Way, best_way, ways
from c2c.systems.tessera.work import Gpus, Transfer, Weights, Work, joined
from c2c.systems.tessera.workers import MODES, Mode, Ran, Sent, WorkerError, run_placed
from c2c.systems.tessera.xla_kernels import program_work, xla_kernels

__all__ = [
    "MAMBA",
    "MODES",
    "PRICE",
    "SD35",
    "SWITCH_S",
    "SYSTEM",
    "VISION",
    "WAYS",
    "Batch",
    "Carried",
    "Costs",
    "Dependency",
    "Efficiency",
    "Gpus",
    "Graph",
    "Group",
    "Lane",
    "Lanes",
    "Launched",
    "Load",
    "Mode",
    "Options",
    "Overlapped",
    "Pair",
    "PairLayout",
    "Phase",
    "Piece",
    "Pieces",
    "Pipelined",
    "Placed",
    "Plan",
    "Policy",
    "Ran",
    "Range",
    "Recording",
    "Rehearsed",
    "Replicas",
    "Robust",
    "Schedule",
    "Seen",
    "Segment",
    "Send",
    "Sent",
    "Served",
    "Stage",
    "StepKernel",
    "Steps",
    "StreamedWay",
    "TimedGpu",
    "Touch",
    "Transfer",
    "Update",
    "VirtualClock",
    "Way",
    "Weights",
    "Work",
    "WorkerError",
    "best_way",
    "blocks_of_layers",
    "chains_of",
    "check_solver",
    "cost",
    "costs_of",
    "cut",
    "cut_curve",
    "decoder",
    "diffusion",
    "diffusion_kernels",
    "fitted_claims",
    "graph_of",
    "groups_of",
    "joined",
    "kernel_s",
    "kernels_of",
    "load_pair",
    "mamba_kernels",
    "memory_of",
    "one_cut",
    "overlapped",
    "overlapped_s",
    "pair_layout",
    "pair_of",
    "pipelined",
    "plan",
    "program_key",
    "program_work",
    "ranked",
    "recording_of",
    "rehearsed",
    "relaxation_s",
    "robust_plan",
    "routes_of",
    "run_interpreted",
    "run_placed",
    "running_on",
    "schedule",
    "slice_gpu",
    "stages_of",
    "state_space",
    "step_kernels",
    "step_s",
    "steps_of",
    "streamed_ways",
    "streamed_work",
    "sweep",
    "tensor_parallel",
    "timed_gpu",
    "timed_gpus",
    "touches_of",
    "transfers_of",
    "vision_kernels",
    "ways",
    "work_of",
    "xla_kernels",
]
