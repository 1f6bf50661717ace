"""PTX tools: parser, tracing of addresses to parameters, instrumentation, interpreter."""

from c2c.systems.tessera.ptx.inject import (
    Injected,
    Record,
    inject,
    intervals_of,
    new_records,
)
from c2c.systems.tessera.ptx.interpret import Interval, interpret
from c2c.systems.tessera.ptx.memory import Memory
from c2c.systems.tessera.ptx.reach import Access, KernelAccess, Mode, Reached, reach
from c2c.systems.tessera.ptx.text import Instruction, KernelText, parse

__all__ = [
    "Access",
    "Injected",
    "Instruction",
    "Interval",
    "KernelAccess",
    "KernelText",
    "Memory",
    "Mode",
    "Reached",
    "Record",
    "inject",
    "interpret",
    "intervals_of",
    "new_records",
    "parse",
    "reach",
]
