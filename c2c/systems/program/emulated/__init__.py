"""Emulated GPU: memory at random addresses."""

from c2c.systems.program.emulated.device import Emulated
from c2c.systems.program.emulated.libraries import Library

__all__ = ["Emulated", "Library"]
