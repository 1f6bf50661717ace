"""Launch programs of a transformer's step."""

from c2c.systems.program.xla.compile import StepShape, compile_step
from c2c.systems.program.xla.distil import distil
from c2c.systems.program.xla.dumps import XlaStep, read_dump
from c2c.systems.program.xla.sizes import over_one_memory, stated_kernels
from c2c.systems.program.xla.targets import TARGETS, XlaTarget

__all__ = [
    "TARGETS",
    "StepShape",
    "XlaStep",
    "XlaTarget",
    "compile_step",
    "distil",
    "over_one_memory",
    "read_dump",
    "stated_kernels",
]
