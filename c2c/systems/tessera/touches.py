"""Memory that each launch reads and writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from c2c.errors import DataError
from c2c.systems.program import Copy, Fill, Launch, Program, Slice
from c2c.systems.tessera.ptx import KernelAccess, Mode, Reached, parse, reach

__all__ = ["Touch", "kernels_of", "touches_of"]


@dataclass(frozen=True, slots=True)
class Touch:
    """A launch's accesses.

    Attributes:
      reads: current slices; one updated in place is read whole.
      opaque: reasons of unknown accesses: all slices are read and written.
    """

    reads: tuple[Slice, ...]
    writes: tuple[Slice, ...]
    opaque: tuple[str, ...] = ()


def kernels_of(program: Program) -> Mapping[str, KernelAccess]:
    """Return the kernels' memory accesses by entry.

    Raises:
      DataError: an unreadable image, or no kernel in it.
    """
    result = {}
    for kernel in program.kernels:
        texts = parse(kernel.image.decode(), f"{kernel.entry}.ptx")
        text = next((t for t in texts if t.name == kernel.entry), None)
        if text is None:
            raise DataError(kernel.entry, "is not in its image")
        result[kernel.entry] = reach(text)
    return result


def touches_of(
    program: Program, kernels: Mapping[str, KernelAccess] | None = None
) -> tuple[Touch, ...]:
    """Return the slices of each launch, in order.

    Raises:
      DataError: a parameter that is no address.
    """
    access_of = kernels_of(program) if kernels is None else kernels
    touches = []
    for number, launch in enumerate(program.launches):
        if isinstance(launch, Copy):
            touches.append(Touch((launch.source,), (launch.target,)))
        elif isinstance(launch, Fill):
            touches.append(Touch((), (launch.target,)))
        else:
            access = access_of[program.kernels[launch.kernel].entry]
            touches.append(_of_kernel(number, launch, access))
    return tuple(touches)


def _of_kernel(number: int, launch: Launch, access: KernelAccess) -> Touch:
    named = Counter(place.slice for a in launch.arguments for place in a.places)
    if access.opaque:
        every = tuple(named)
        return Touch(every, every, access.opaque)
    reads = dict.fromkeys(_slice(number, launch, access, r, "r") for r in _ordered(access.reads))
    writes = dict.fromkeys(_slice(number, launch, access, r, "w") for r in _ordered(access.writes))
    operands = [part for part in writes if named[part] > 1]  # an operand and a result
    return Touch(tuple(dict.fromkeys([*reads, *operands])), tuple(writes))


def _ordered(reached: frozenset[Reached]) -> list[Reached]:
    return sorted(reached)


def _slice(
    number: int, launch: Launch, access: KernelAccess, reached: Reached, mode: Mode
) -> Slice:
    if reached.parameter < len(launch.arguments):
        for place in launch.arguments[reached.parameter].places:
            if place.at == reached.at and (place.kind == "map") == reached.is_map:
                return place.slice
    kernel = access.kernel
    first = next(a for a in access.accesses if reached in a.reached and mode in a.mode)
    raise kernel.fault(
        kernel.body[first.index],
        f"launch {number} has no address at byte {reached.at} of parameter {reached.parameter}",
    )
