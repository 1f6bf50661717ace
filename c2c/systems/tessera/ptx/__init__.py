"""PTX tools: parser, tracing of addresses to parameters, instrumentation."""

from c2c.systems.tessera.ptx.inject import (
    Injected,
    Interval,
    Record,
    inject,
    intervals_of,
    new_records,
)
from c2c.systems.tessera.ptx.reach import Access, KernelAccess, Mode, Reached, reach
from c2c.systems.tessera.ptx.text import Instruction, KernelText, parse

__all__ = [
    "Access",
    "Injected",
    "Instruction",
    "Interval",
    "KernelAccess",
    "KernelText",
    "Mode",
    "Reached",
    "Record",
    "inject",
    "intervals_of",
    "new_records",
    "parse",
    "reach",
]
