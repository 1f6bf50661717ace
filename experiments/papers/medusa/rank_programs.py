"""Launch programs of tensor-parallel ranks, alike but for arguments."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

from c2c.models import ModelSpec
from c2c.systems.program import (
    Access,
    Argument,
    Buffer,
    Copy,
    Entry,
    Fill,
    Kernel,
    Launch,
    ParameterDeclaration,
    Place,
    Program,
    Slice,
    write_image,
)

__all__ = ["Rank", "ranked", "shard"]

_SIGNAL_BYTES = 64  # bytes of a signal that each rank writes for the others
_SUMMED_BYTES = 4  # bytes of a partial sum that the emulated kernel reads
_SUMS = ("o_gemm", "o_reduce", "down_gemm", "down_reduce")  # products with partial sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A process of a tensor-parallel engine.

    Attributes:
      handle: the communicator's, random in each process.
    """

    number: int
    world: int
    handle: int

    @classmethod
    def of(cls, number: int, world: int, seed: int) -> Rank:
        """Return a rank with the handle of a process of this seed."""
        draw = random.Random(f"communicator {seed}")  # noqa: S311
        return cls(number=number, world=world, handle=draw.randrange(1 << 62, 1 << 63))

    @property
    def told(self) -> Mapping[str, int]:
        """The rank's arguments that launches pass on."""
        return {
            "rank": self.number,
            "shard_begin": self.number * 4096,
            "communicator": self.handle,
        }


def shard(spec: ModelSpec, world: int) -> ModelSpec:
    """Return a rank's part of a model; a single KV head is on all."""
    return replace(
        spec,
        heads=max(1, spec.heads // world),
        kv_heads=max(1, spec.kv_heads // world),
        intermediate=spec.intermediate // world,
        vocab=spec.vocab // world,
    )


def ranked(program: Program, rank: Rank) -> Program:
    """Return a program with all-reduces over all ranks."""
    if program.edges is not None:
        raise ValueError("program: expected launches in one stream, without edges")
    buffers, kernels = len(program.buffers), len(program.kernels)
    signals = tuple(range(buffers, buffers + rank.world))
    targets = {
        k: target
        for k, launch in enumerate(program.launches)
        if (target := _summed(program, k, launch)) is not None
    }
    launches: list[Launch | Copy | Fill] = []
    begins: list[int] = []  # new index of each launch
    for k, launch in enumerate(program.launches):
        begins.append(len(launches))
        launches.append(launch)
        if k in targets:
            launches.append(_all_reduce(kernels, signals, targets[k], rank))
    moved = tuple(
        replace(
            b,
            first=None if b.first is None else begins[b.first],
            last=None if b.last is None else begins[b.last] + (b.last in targets),
        )
        for b in program.buffers
    )
    contents = (f"signal of rank {k}".ljust(_SIGNAL_BYTES).encode() for k in range(rank.world))
    rank_buffers = tuple(Buffer(4096, thread=f"rank{k}", content=c) for k, c in enumerate(contents))
    return replace(
        program,
        buffers=(*moved, *rank_buffers),
        kernels=(*program.kernels, _kernel(rank.world)),
        launches=tuple(launches),
        inputs=(*program.inputs, *(Slice(k, 0, _SIGNAL_BYTES) for k in signals)),
    )


def _summed(program: Program, k: int, launch: Launch | Copy | Fill) -> Slice | None:
    if not isinstance(launch, Launch):
        return None
    name = program.kernels[launch.kernel].entry
    is_step = any(kernel.entry.startswith(_SUMS) for kernel in program.kernels)
    if is_step:
        following = program.launches[k + 1] if k + 1 < len(program.launches) else None
        is_split = isinstance(following, Launch) and "_reduce" in (
            program.kernels[following.kernel].entry
        )
        if not name.startswith(_SUMS) or is_split:
            return None
    elif k % 3:
        return None
    places = [p.slice for a in launch.arguments for p in a.places if p.kind == "pointer"]
    large = [s for s in places if s.nbytes >= _SUMMED_BYTES]
    return replace(large[-1], nbytes=_SUMMED_BYTES) if large else None


def _kernel(world: int) -> Kernel:
    accesses = tuple(Access(0, 8 * k, "pointer", "r", _SIGNAL_BYTES) for k in range(world))
    entry = Entry(
        "all_reduce",
        (
            ParameterDeclaration(8 * world, 8),
            ParameterDeclaration(8, 8, is_pointer=True),
            ParameterDeclaration(4, 4),
            ParameterDeclaration(16, 8),
        ),
        (*accesses, Access(1, 0, "pointer", "rw", _SUMMED_BYTES)),
        allocates=False,
    )
    return Kernel(entry.name, write_image([entry]))


def _all_reduce(kernel: int, signals: tuple[int, ...], target: Slice, rank: Rank) -> Launch:
    facts = rank.told
    struct_of_signals = Argument(
        bytes(8 * rank.world),
        tuple(Place(8 * k, Slice(s, 0, _SIGNAL_BYTES)) for k, s in enumerate(signals)),
    )
    # a handle, then the begin of the rank's shard, and a number that all ranks share
    packed = struct.pack("<QII", facts["communicator"], facts["shard_begin"], rank.world)
    return Launch(
        kernel,
        (
            struct_of_signals,
            Argument(bytes(8), (Place(0, target),)),
            Argument(struct.pack("<I", facts["rank"])),
            Argument(packed),
        ),
    )
