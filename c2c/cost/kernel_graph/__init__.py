"""Kernel graph of a model step."""

from c2c.cost.kernel_graph.gpus import TimedGpu
from c2c.cost.kernel_graph.kernel_times import (
    COLUMNS,
    modelled_us,
    timed_gpu,
    timed_gpus,
    timed_node,
    times_lines,
)
from c2c.cost.kernel_graph.kernels import (
    Batch,
    StepKernel,
    Transfer,
    Weights,
    step_kernels,
    transfers_of,
)
from c2c.cost.kernel_graph.other_models import (
    MAMBA,
    SD35,
    VISION,
    diffusion_kernels,
    mamba_kernels,
    vision_kernels,
)
from c2c.cost.kernel_graph.phases import (
    Load,
    Phase,
    Served,
    decoder,
    diffusion,
    parameter_bytes,
    state_space,
)
from c2c.cost.kernel_graph.seconds import Efficiency, kernel_s, step_s
from c2c.cost.kernel_graph.tensor_parallel import ranked, tensor_parallel

__all__ = [
    "COLUMNS",
    "MAMBA",
    "SD35",
    "VISION",
    "Batch",
    "Efficiency",
    "Load",
    "Phase",
    "Served",
    "StepKernel",
    "TimedGpu",
    "Transfer",
    "Weights",
    "decoder",
    "diffusion",
    "diffusion_kernels",
    "kernel_s",
    "mamba_kernels",
    "modelled_us",
    "parameter_bytes",
    "ranked",
    "state_space",
    "step_kernels",
    "step_s",
    "tensor_parallel",
    "timed_gpu",
    "timed_gpus",
    "timed_node",
    "times_lines",
    "transfers_of",
    "vision_kernels",
]
