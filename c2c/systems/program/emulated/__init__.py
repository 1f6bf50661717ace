"""A GPU in Python: memory at random addresses, modules, capture and graphs, kernels as digests."""

from c2c.systems.program.emulated.device import Emulated
from c2c.systems.program.emulated.libraries import Library

__all__ = ["Emulated", "Library"]
