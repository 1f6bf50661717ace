"""Launch programs: a step's GPU launches as data."""

from c2c.systems.program.allocator import Allocator, Arenas
from c2c.systems.program.emulated import Emulated, Library
from c2c.systems.program.execute import Running
from c2c.systems.program.image import (
    Access,
    Entry,
    ParameterDeclaration,
    Traced,
    entries_of,
    image_key,
    write_image,
)
from c2c.systems.program.port import (
    FULL,
    PROGRAMMATIC,
    TENSOR_MAP_BYTES,
    CopyCall,
    Device,
    DeviceFault,
    Edge,
    FillCall,
    KernelCall,
    LaunchAttribute,
    ParameterPlace,
    Peer,
)
from c2c.systems.program.program import (
    Argument,
    Buffer,
    Copy,
    Fill,
    Kernel,
    Launch,
    Place,
    Program,
    Slice,
)
from c2c.systems.program.ptx_kernels import body_of
from c2c.systems.program.recorder import AllocationId, Event, Recorder

__all__ = [
    "FULL",
    "PROGRAMMATIC",
    "TENSOR_MAP_BYTES",
    "Access",
    "AllocationId",
    "Allocator",
    "Arenas",
    "Argument",
    "Buffer",
    "Copy",
    "CopyCall",
    "Device",
    "DeviceFault",
    "Edge",
    "Emulated",
    "Entry",
    "Event",
    "Fill",
    "FillCall",
    "Kernel",
    "KernelCall",
    "Launch",
    "LaunchAttribute",
    "Library",
    "ParameterDeclaration",
    "ParameterPlace",
    "Peer",
    "Place",
    "Program",
    "Recorder",
    "Running",
    "Slice",
    "Traced",
    "body_of",
    "entries_of",
    "image_key",
    "write_image",
]
