"""Recording of a program's memory accesses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from c2c.systems.program import Argument, Buffer, Launch, Place, Program, Slice, Traced
from c2c.systems.tessera.ptx import Interval, KernelAccess, Record, inject, intervals_of
from c2c.systems.tessera.ptx.inject import RECORD_BYTES, new_records

__all__ = ["Recording", "Seen", "recording_of"]


@dataclass(frozen=True, slots=True)
class Seen:
    """Bytes that one access touched, from its slice's start."""

    launch: int
    part: Slice
    interval: Interval

    @property
    def is_inside(self) -> bool:
        """True if all bytes are in the slice."""
        return 0 <= self.interval.begin < self.interval.end <= self.part.nbytes


@dataclass(frozen=True, slots=True)
class Recording:
    """A program whose launches write intervals into a last buffer.

    Attributes:
      records: [launch], records and offset.
    """

    program: Program
    records: tuple[tuple[tuple[Record, ...], int], ...]
    known: Mapping[str, KernelAccess]

    @property
    def intervals(self) -> Slice:
        """Slice of all intervals."""
        last = len(self.program.buffers) - 1
        return Slice(last, 0, self.program.buffers[last].nbytes)

    def seen(self, content: bytes, address_of: Mapping[int, int]) -> tuple[Seen, ...]:
        """Return the bytes of actual accesses, with a known slice."""
        result = []
        for number, (records, offset) in enumerate(self.records):
            if not records:
                continue
            launch = self.program.launches[number]
            assert isinstance(launch, Launch)
            accesses = {
                a.index: a for a in self.known[self.program.kernels[launch.kernel].entry].accesses
            }
            rows = content[offset : offset + RECORD_BYTES * len(records)]
            for record, interval in intervals_of(records, rows).items():
                reached = accesses[record.index].reached
                if record.dimension is not None or len(reached) != 1:
                    continue  # coordinates of a tensor copy, or one of several slices
                (one,) = reached
                part = launch.arguments[one.parameter].places[0].slice
                begin = address_of[part.buffer] + part.offset
                seen = Interval(interval.begin - begin, interval.end - begin)
                result.append(Seen(number, part, seen))
        return tuple(result)


def recording_of(program: Program, accesses: Mapping[str, KernelAccess]) -> Recording:
    """Return a program that records its accesses.

    Raises:
      DataError: a kernel with unknown accesses.
    """
    twins, records_of = [], []
    for kernel in program.kernels:
        access = accesses[kernel.entry]
        injection = inject(kernel.image.decode(), f"{kernel.entry}.ptx")
        records = injection.records[kernel.entry]
        stated = "".join(
            f"{Traced(len(access.kernel.parameters), k, one.parameter, one.at).stated()}\n"
            for k, record in enumerate(records)
            for one in next(a for a in access.accesses if a.index == record.index).reached
        )
        twins.append(replace(kernel, image=(stated + injection.text).encode()))
        records_of.append(records)
    buffer = len(program.buffers)
    launches, placed, offset = [], [], 0
    for launch in program.launches:
        mine = records_of[launch.kernel] if isinstance(launch, Launch) else ()
        placed.append((mine, offset))
        if isinstance(launch, Launch):
            nbytes = RECORD_BYTES * len(mine)
            more = Argument(bytes(8), (Place(0, Slice(buffer, offset, nbytes)),))
            launch = replace(launch, arguments=(*launch.arguments, more))  # noqa: PLW2901
            offset += nbytes
        launches.append(launch)
    content = b"".join(new_records(records) for records, _ in placed)
    return Recording(
        replace(
            program,
            buffers=(*program.buffers, Buffer(len(content), content=content)),
            kernels=tuple(twins),
            launches=tuple(launches),
        ),
        tuple(placed),
        accesses,
    )
