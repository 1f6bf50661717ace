"""Ambiguities are refused, by kernel, parameter and byte; the rest is restored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from c2c.errors import DataError, SettingError
from c2c.systems.medusa import Capture, analyse, make_artefact, read_capture, restore, write_capture
from c2c.systems.program import (
    Access,
    Argument,
    Buffer,
    Copy,
    CopyCall,
    DeviceFault,
    Emulated,
    Entry,
    Kernel,
    Launch,
    ParameterDeclaration,
    Place,
    Program,
    Slice,
    write_image,
)
from c2c.systems.program.port import NodeKind
from experiments.papers.medusa.processes import Process, key_of, libraries_of
from experiments.papers.medusa.synthetic import Shape, random_program
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


SEEDED = Entry("seeded", (POINTER, ParameterDeclaration(8, 8)), (), allocates=False)
TAIL = Entry("tail", (ParameterDeclaration(12, 4),), (), allocates=False)


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (
            [(SEEDED, at(0), Argument(n.to_bytes(8, "little"))) for n in (1, 2)],
            ["node 0 (seeded), parameter 1, byte 0", "differs between two captures"],
        ),
        (
            [(TAIL, Argument(bytes(8) + bytes([n] * 4))) for n in (1, 2)],
            ["parameter 0, byte 8: differs between two captures and is no whole word"],
        ),
        (
            [(Entry("moves", (POINTER,), (), allocates=False), at(0, n)) for n in (0, 8)],
            ["not the same offset"],
        ),
        (
            [(Entry("grows", (POINTER,), (), allocates=True), at(0))] * 2,
            ["(grows)", "allocates memory on the device"],
        ),
    ],
)
def test_what_differs_is_refused(pair: list[tuple[Any, ...]], said: list[str]) -> None:
    text = refused(*(program(*arguments) for arguments in pair))
    assert all(part in text for part in said)


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


@pytest.mark.parametrize("where", ["live", "freed", "other buffers", "end"])
def test_an_address_of_any_time_in_a_buffer(where: str) -> None:
    """A pointer that nobody uses now may be of memory that is freed, or used again by others."""
    case = made(10)
    name = next(name for name, data in case.first.contents.items() if len(data) > 64)
    allocated = [e for e in case.first.events if not e.is_free]
    freed = {e.allocation for e in case.first.events if e.is_free}
    gone = [e for e in allocated if e.allocation in freed]
    target = next(e for e in allocated if e.allocation not in freed) if where == "live" else gone[0]
    changed = []
    for capture in (case.first, case.second):
        found = next(e for e in capture.events if e.allocation == target.allocation)
        if where == "other buffers" and capture is case.second:  # as memory that is used again
            found = next(e for e in capture.events if e.allocation == gone[-1].allocation)
        address = found.address + (found.nbytes if where == "end" else 8)
        data = bytearray(capture.contents[name])
        data[24:32] = address.to_bytes(8, "little")
        changed.append(replace(capture, contents={**capture.contents, name: bytes(data)}))
    (refusal,) = analyse(*changed, case.original.device.replace_address).refusals
    assert refusal.why == "points to a buffer that holds addresses, at byte 24"


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
    assert "is in two modules" in refused(both, both)


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


class Odd(Emulated):
    """A device of whose second graph one node cannot be restored."""

    def __init__(self, seed: int, program: Program, call: str, at: int) -> None:
        super().__init__(seed, libraries_of(program))
        self.call, self.at = call, at
        self.ended = 0
        self.odd = 0

    def end_capture(self) -> int:
        graph = super().end_capture()
        self.ended += 1
        if self.ended == 2:
            self.odd = self.nodes(graph)[self.at]
        return graph

    def node_kind(self, node: int) -> NodeKind:
        if self.call == "node_kind" and node == self.odd:
            return "host"  # type: ignore[return-value]
        return super().node_kind(node)

    def copy_of(self, node: int) -> CopyCall:
        if self.call == "copy_of" and node == self.odd:
            raise DeviceFault("a memcpy node that is not one row of device memory")
        return super().copy_of(node)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("node_kind", "a host node; kernel, memcpy, memset, child graph and empty nodes are"),
        ("copy_of", "a memcpy node that is not one row of device memory; "),
    ],
)
def test_a_node_that_cannot_be_restored_leaves_its_graph_to_be_captured(
    call: str, why: str, tmp_path: Path
) -> None:
    made_from = (random_program(Shape(seed=seed)) for seed in range(20))
    plain, at = next(
        (program, k)
        for program in made_from
        for k, launch in enumerate(program.launches)
        if isinstance(launch, Copy)
    )
    programs = {1: plain, 2: plain, 4: plain}
    found = []
    for seed in (1, 2):
        device = Odd(seed, plain, call, at)
        process = Process(programs, seed, has_guards=seed == 2, device=device)
        write_capture(tmp_path / f"{seed}", process.capture())
        found.append(read_capture(tmp_path / f"{seed}"))
    analysed = analyse(*found, device.replace_address)
    (refusal,) = analysed.refusals
    assert (refusal.batch, refusal.node) == (2, at)
    assert refusal.why.startswith(why)
    artefact = make_artefact(key_of(programs, "odd"), found[0], analysed)
    other = Process(programs, 7)
    assert set(restore(artefact, other.recorder, other.triggered()).graphs) == {1, 4}
