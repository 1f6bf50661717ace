"""Random launch programs with all kinds of parameters."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, replace

from c2c.systems.program import (
    FULL,
    PROGRAMMATIC,
    TENSOR_MAP_BYTES,
    Access,
    Argument,
    Buffer,
    Copy,
    Edge,
    Entry,
    Fill,
    Kernel,
    Launch,
    LaunchAttribute,
    ParameterDeclaration,
    Place,
    Program,
    Slice,
    body_of,
    write_image,
)

__all__ = ["Shape", "random_program", "with_adversarial_integers"]

_WORD = ParameterDeclaration(4, 4)
_LONG = ParameterDeclaration(8, 8)
_POINTER = ParameterDeclaration(8, 8, is_pointer=True)
_INTEGER_MARK = 0x5EED  # mark of 8-byte integers that an adversary may change


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Ingredients of a random program.

    Attributes:
      launches: least number of launches.
      has_ends: whether addresses are one past a buffer's end.
      has_dag: whether edges are by use of data, not one stream.
      threads: threads that allocate standing buffers.
      is_for_gpu: whether kernels are from images, for a GPU.
    """

    seed: int
    launches: int = 12
    standing: int = 5
    passing: int = 4
    has_structs: bool = True
    has_maps: bool = True
    has_ends: bool = True
    has_dag: bool = False
    threads: int = 2
    is_for_gpu: bool = False


def random_program(shape: Shape) -> Program:
    """Return a program of a shape; equal shapes give equal programs."""
    draw = random.Random(shape.seed)  # noqa: S311
    kernels, entries = _kernels(shape, draw)
    buffers = [
        Buffer(size, thread=f"t{k % shape.threads}", content=draw.randbytes(size))
        for k in range(shape.standing)
        for size in [draw.choice((64, 512, 600, 4096, 40_000))]
    ]
    launches: list[Launch | Copy | Fill] = []
    count = shape.launches
    pending = sorted((draw.randrange(count), draw.randint(1, count)) for _ in range(shape.passing))
    alive: list[tuple[int, int]] = [(k, 1 << 30) for k in range(shape.standing)]
    for number in range(count):
        while pending and pending[0][0] <= number:
            begin, length = pending.pop(0)
            _begin(shape, draw, buffers, launches, alive, begin + length)
        alive = [(k, end) for k, end in alive if end >= number]
        if draw.random() < 0.1:
            launches.append(_copy(draw, buffers, alive))
        else:
            launch = _launch(draw, kernels, entries, buffers, alive)
            launches.append(replace(launch, attributes=()) if shape.is_for_gpu else launch)
        _end(buffers, launches, alive, number)
    buffers = [
        replace(b, last=len(launches) - 1)
        if b.last is None and b.first is not None and not b.content and k % 3
        else b
        for k, b in enumerate(buffers)
    ]
    if shape.has_dag:  # reused memory would need edges of its own
        buffers = [replace(b, last=None) for b in buffers]
    edges = _edges(draw, launches) if shape.has_dag else None
    standing = tuple(Slice(k, 0, b.nbytes) for k, b in enumerate(buffers) if b.first is None)
    outputs = tuple(Slice(k, 0, b.nbytes) for k, b in enumerate(buffers) if b.last is None)
    return Program(
        tuple(buffers), kernels, tuple(launches), edges, inputs=standing, outputs=outputs
    )


def with_adversarial_integers(
    program: Program, addresses: dict[int, int], draw: random.Random
) -> Program:
    """Return the program with 8-byte integers equal to live addresses of a process."""
    ranges = [(addresses[part.buffer], part.nbytes) for part in program.inputs]
    launches: list[Launch | Copy | Fill] = []
    for launch in program.launches:
        if isinstance(launch, Launch):
            arguments = tuple(_adversarial(a, ranges, draw) for a in launch.arguments)
            launch = replace(launch, arguments=arguments)  # noqa: PLW2901
        launches.append(launch)
    return replace(program, launches=tuple(launches))


def _adversarial(
    argument: Argument, ranges: list[tuple[int, int]], draw: random.Random
) -> Argument:
    if argument.places or len(argument.data) != 8:
        return argument
    if int.from_bytes(argument.data, "little") >> 48 != _INTEGER_MARK:
        return argument
    start, nbytes = draw.choice(ranges)
    return Argument((start + draw.randrange(nbytes)).to_bytes(8, "little"))


def _kernels(shape: Shape, draw: random.Random) -> tuple[tuple[Kernel, ...], list[Entry]]:
    entries: list[Entry] = []
    kernels: list[Kernel] = []
    origins = (("", False), ("visible.so", False), ("hidden.so", True), ("hidden.so", True))
    for group, (library, is_hidden) in enumerate(origins):
        if shape.is_for_gpu:
            library, is_hidden = "", False  # noqa: PLW2901
        members = [_entry(shape, draw, f"k{group}_{n}") for n in range(draw.randrange(1, 4))]
        image = write_image(members, body_of if shape.is_for_gpu else None)
        for entry in members:
            limit = 100_000 if draw.random() < 0.2 else 0
            kernels.append(Kernel(entry.name, image, library, is_hidden, limit))
        entries += members
    return tuple(kernels), entries


def _entry(shape: Shape, draw: random.Random, name: str) -> Entry:
    kinds = ["pointer", "pointer", "word", "long"]
    kinds += ["struct"] * shape.has_structs + ["map"] * (shape.has_maps and not shape.is_for_gpu)
    parameters: list[ParameterDeclaration] = []
    accesses: list[Access] = []
    for k in range(draw.randrange(2, 6)):
        kind = "pointer" if k == 0 else draw.choice(kinds)
        if kind == "pointer":
            parameters.append(_POINTER)
            ends = shape.has_ends and k and draw.random() < 0.1
            mode = "rw" if k == 0 else draw.choice(("r", "w", "rw"))
            nbytes = 0 if ends else draw.choice((4, 8, 20, 64))
            accesses.append(Access(k, 0, "pointer", mode, nbytes))  # type: ignore[arg-type]
        elif kind == "struct":
            words = draw.randrange(2, 7)
            parameters.append(ParameterDeclaration(8 * words, 8))
            accesses += [
                Access(k, 8 * index, "pointer", "r", draw.choice((4, 16)))
                for index in draw.sample(range(words), draw.randrange(0, 3))
            ]
        elif kind == "map":
            parameters.append(ParameterDeclaration(TENSOR_MAP_BYTES, 64))
            accesses.append(Access(k, 0, "map", draw.choice(("r", "w")), 32))
        else:
            parameters.append(_WORD if kind == "word" else _LONG)
    return Entry(name, tuple(parameters), tuple(accesses), allocates=False)


def _begin(
    shape: Shape,
    draw: random.Random,
    buffers: list[Buffer],
    launches: list[Launch | Copy | Fill],
    alive: list[tuple[int, int]],
    end: int,
) -> None:
    nbytes = draw.choice((64, 512, 1024, 70_000))
    stays = draw.random() < 0.2
    content = draw.randbytes(nbytes) if stays else b""
    alive.append((len(buffers), 1 << 30 if stays or shape.has_dag else end))
    buffers.append(Buffer(nbytes, first=len(launches), content=content))
    if not stays:
        whole = Slice(len(buffers) - 1, 0, nbytes)
        launches.append(Fill(whole, draw.randrange(1 << 32)))


def _end(
    buffers: list[Buffer],
    launches: list[Launch | Copy | Fill],
    alive: list[tuple[int, int]],
    number: int,
) -> None:
    for k, end in alive:
        if end == number and buffers[k].first is not None:
            buffers[k] = replace(buffers[k], last=len(launches) - 1)


def _copy(draw: random.Random, buffers: list[Buffer], alive: list[tuple[int, int]]) -> Copy:
    source, target = (draw.choice(alive)[0] for _ in range(2))
    nbytes = min(32, buffers[source].nbytes, buffers[target].nbytes)
    return Copy(Slice(target, 0, nbytes), Slice(source, 0, nbytes))


def _launch(
    draw: random.Random,
    kernels: tuple[Kernel, ...],
    entries: list[Entry],
    buffers: list[Buffer],
    alive: list[tuple[int, int]],
) -> Launch:
    which = draw.randrange(len(kernels))
    entry = entries[which]
    arguments = []
    for k, parameter in enumerate(entry.parameters):
        accesses = [a for a in entry.accesses if a.parameter == k]
        data = draw.randbytes(parameter.nbytes)
        if parameter == _LONG:
            kind = draw.random()
            high = _INTEGER_MARK if kind < 0.5 else 0x7F if kind < 0.6 else 0
            data = struct.pack("<Q", (high << 48 | draw.randrange(1 << 40)) if kind < 0.9 else 0)
        places = tuple(_place(draw, a, buffers, alive) for a in accesses)
        arguments.append(Argument(data, places))
    limit = kernels[which].shared_limit
    attributes: tuple[LaunchAttribute, ...] = ()
    if draw.random() < 0.2:
        attributes = (LaunchAttribute(4, struct.pack("<3I", 2, 1, 1) + bytes(52)),)
    return Launch(
        which,
        tuple(arguments),
        grid=(draw.randrange(1, 9), 1, 1),
        shared_bytes=draw.randrange(limit + 1) if limit else 0,
        attributes=attributes,
    )


def _place(
    draw: random.Random, access: Access, buffers: list[Buffer], alive: list[tuple[int, int]]
) -> Place:
    buffer = draw.choice(alive)[0]
    room = buffers[buffer].nbytes - access.nbytes
    offset = room if access.nbytes == 0 else 4 * draw.randrange(room // 4 + 1)
    kind = "map" if access.kind == "map" else "pointer"
    return Place(access.at, Slice(buffer, offset, access.nbytes), kind)  # type: ignore[arg-type]


def _edges(draw: random.Random, launches: list[Launch | Copy | Fill]) -> tuple[Edge, ...]:
    users: dict[int, int] = {}
    edges = []
    for number, launch in enumerate(launches):
        if isinstance(launch, Launch):
            used = {p.slice.buffer for a in launch.arguments for p in a.places}
        elif isinstance(launch, Copy):
            used = {launch.target.buffer, launch.source.buffer}
        else:
            used = {launch.target.buffer}
        for source in sorted({users[b] for b in used if b in users}):
            is_early = draw.random() < 0.3
            edges.append(Edge(source, number, int(is_early), 0, PROGRAMMATIC if is_early else FULL))
        users.update(dict.fromkeys(used, number))
    return tuple(edges)
