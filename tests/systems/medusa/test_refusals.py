"""What cannot be told is refused, by kernel, parameter and byte; the rest is restored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from c2c.errors import DataError, SettingError
from c2c.systems.medusa import Capture, analyse
from c2c.systems.program import (
    Access,
    Argument,
    Buffer,
    Entry,
    Kernel,
    Launch,
    ParameterDeclaration,
    Place,
    Program,
    Slice,
    write_image,
)
from experiments.medusa.processes import Process
from tests.systems.medusa.cases import made

POINTER = ParameterDeclaration(8, 8, True)


def program(entry: Entry, *arguments: Argument, extra: tuple[Buffer, ...] = ()) -> Program:
    kernel = Kernel(entry.name, write_image([entry]))
    buffers = (Buffer(64, content=bytes(64)), *extra)
    return Program(
        buffers,
        (kernel,),
        (Launch(0, arguments),),
        inputs=(Slice(0, 0, 64),),
        outputs=(Slice(0, 0, 64),),
    )


def captures(*programs: Program) -> list[Capture]:
    return [
        Process({1: p}, seed, has_guards=seed == 2).capture() for seed, p in enumerate(programs, 1)
    ]


def refused(*programs: Program) -> str:
    first, second = captures(*programs)
    found = analyse(first, second, lambda data, _: data)
    assert not found.graphs
    return str(found.refusals[0])


def at(buffer: int, offset: int = 0) -> Argument:
    return Argument(bytes(8), (Place(0, Slice(buffer, offset)),))


def test_a_word_that_differs_without_being_an_address() -> None:
    entry = Entry("seeded", (POINTER, ParameterDeclaration(8, 8)), (), allocates=False)
    one, two = (program(entry, at(0), Argument(n.to_bytes(8, "little"))) for n in (1, 2))
    text = refused(one, two)
    assert "node 0 (seeded), parameter 1, byte 0" in text
    assert "differs between two captures" in text


def test_a_struct_that_differs_at_its_end() -> None:
    entry = Entry("tail", (ParameterDeclaration(12, 4),), (), allocates=False)
    one, two = (program(entry, Argument(bytes(8) + bytes([n] * 4))) for n in (1, 2))
    assert "parameter 0, byte 8: differs between two captures and is no whole word" in refused(
        one, two
    )


def test_an_address_of_another_place_in_the_other_capture() -> None:
    entry = Entry("moves", (POINTER,), (), allocates=False)
    assert "not the same place" in refused(program(entry, at(0)), program(entry, at(0, 8)))


def test_memory_allocated_on_the_device() -> None:
    entry = Entry("grows", (POINTER,), (), allocates=True)
    assert "(grows)" in (text := refused(program(entry, at(0)), program(entry, at(0))))
    assert "allocates memory on the device" in text


def test_a_table_of_pointers() -> None:
    """A permanent buffer that holds an address: restoring its bytes would restore a stale one."""
    entry = Entry("gathers", (POINTER,), (Access(0, 0, "table", "r", 8),), allocates=False)
    found = []
    for seed in (1, 2):
        table = Buffer(16, first=0, content=bytes(16))
        process = Process({1: program(entry, at(1), extra=(table,))}, seed, has_guards=seed == 2)
        target = process.running.addresses[0].to_bytes(8, "little")
        filled = replace(table, content=bytes(8) + target)
        # the table's second word; its first is never used
        made_here = program(entry, Argument(bytes(8), (Place(0, Slice(1, 8)),)), extra=(filled,))
        process.programs = {1: made_here}
        found.append(process.capture())
    refusal = analyse(*found, lambda data, _: data).refusals[0]
    assert (refusal.kernel, refusal.parameter, refusal.byte) == ("gathers", 0, 0)
    assert "holds addresses, at byte 8" in refusal.why


def test_two_hidden_modules_that_cannot_be_told_apart() -> None:
    entry = Entry("gemm", (POINTER,), (), allocates=False)
    images = [write_image([entry]) + tail for tail in (b"// a", b"// b")]
    libraries = ("one.so", "two.so")
    kernels = tuple(
        Kernel("gemm", image, lib, is_hidden=True)
        for image, lib in zip(images, libraries, strict=True)
    )
    both = Program(
        (Buffer(64, content=bytes(64)),), kernels, tuple(Launch(k, (at(0),)) for k in (0, 1))
    )
    assert "stands in two modules" in refused(both, both)


def test_captures_of_different_starts() -> None:
    first, second = made().first, made().second
    other = made(6).second
    with pytest.raises(DataError, match="two captures"):
        analyse(first, other, lambda data, _: data)
    with pytest.raises(DataError, match="both have memory at"):
        analyse(first, replace(first, contents={}), lambda data, _: data)
    shorter = replace(second, events=second.events[:-1])
    with pytest.raises(DataError, match="events in one"):
        analyse(first, shorter, lambda data, _: data)
    with pytest.raises(DataError, match="graphs in one"):
        analyse(first, replace(second, graphs=()), lambda data, _: data)


def test_an_unknown_classifier() -> None:
    with pytest.raises(SettingError, match="one of paper, ptx, differential"):
        analyse(made().first, made().second, lambda data, _: data, "guess")  # type: ignore[arg-type]


def test_a_node_of_another_kind_is_refused_by_name() -> None:
    process = Process(made().original.programs, 3)
    process.device.node_kind = lambda _: "host"  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(DataError, match="node 0 is a host node"):
        process.capture()
