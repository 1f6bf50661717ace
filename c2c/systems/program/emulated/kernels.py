"""Emulated kernels: writes by a digest of name, constants and bytes read."""

from __future__ import annotations

import struct
import zlib
from typing import Final

from c2c.systems.program.emulated.memory import Memory
from c2c.systems.program.image import Access, Entry
from c2c.systems.program.port import TENSOR_MAP_BYTES, DeviceFault, KernelCall

__all__ = ["execute", "fill_bytes", "sealed"]

_STEP: Final = 0x9E3779B1
_MASK: Final = 0xFFFFFFFF
_SEAL: Final = 0x54D4


def sealed(tensor_map: bytes, address: int) -> bytes:
    """Return a tensor map with another address, its last word a checksum."""
    body = address.to_bytes(8, "little") + tensor_map[8 : TENSOR_MAP_BYTES - 4]
    return body + struct.pack("<I", zlib.crc32(body, _SEAL))


# The fake driver library (tests/systems/program/fake) computes the same in C.
def execute(entry: Entry, call: KernelCall, memory: Memory) -> None:
    """Run a kernel: digest bytes read, write all."""
    digest = zlib.crc32(entry.name.encode())
    digest = zlib.crc32(struct.pack("<7I", *call.grid, *call.block, call.shared_bytes), digest)
    for number, value in call.attributes:
        digest = zlib.crc32(value, zlib.crc32(struct.pack("<I", number), digest))
    constants = [bytearray(p) for p in call.parameters]
    places = []
    for access in entry.accesses:
        places.append(_address(access, call.parameters[access.parameter], memory))
        constants[access.parameter][access.at : access.at + access.width] = bytes(access.width)
    for k, parameter in enumerate(constants):
        if all(k != traced.intervals for traced in entry.traced):
            digest = zlib.crc32(parameter, digest)
    for access, address in zip(entry.accesses, places, strict=True):
        if access.mode != "w" and access.nbytes:
            digest = zlib.crc32(memory.read(address, access.nbytes), digest)
    for k, (access, address) in enumerate(zip(entry.accesses, places, strict=True)):
        if access.mode != "r" and access.nbytes:
            seed = zlib.crc32(struct.pack("<I", k), digest)
            memory.write(address, fill_bytes(seed, access.nbytes))
    _record(entry, call, places, memory)


def _record(entry: Entry, call: KernelCall, places: list[int], memory: Memory) -> None:
    for traced in entry.traced:
        row = int.from_bytes(call.parameters[traced.intervals], "little") + 16 * traced.number
        for access, address in zip(entry.accesses, places, strict=True):
            if (access.parameter, access.at) == (traced.parameter, traced.at) and access.nbytes:
                low, high = struct.unpack("<2Q", memory.read(row, 16))
                wider = min(low, address), max(high, address + access.nbytes)
                memory.write(row, struct.pack("<2Q", *wider))


def fill_bytes(seed: int, nbytes: int) -> bytes:
    """Return one write's bytes, by `seed` and position."""
    count = -(-nbytes // 4)
    words = [(seed + j * _STEP) & _MASK for j in range(count)]
    return struct.pack(f"<{count}I", *words)[:nbytes]


def _address(access: Access, parameter: bytes, memory: Memory) -> int:
    word = int.from_bytes(parameter[access.at : access.at + 8], "little")
    if access.kind == "pointer":
        return word
    if access.kind == "table":
        return int.from_bytes(memory.read(word, 8), "little")
    tensor_map = parameter[access.at : access.at + TENSOR_MAP_BYTES]
    if sealed(tensor_map, word) != tensor_map:
        raise DeviceFault("a tensor map that the driver has not made")
    return word
