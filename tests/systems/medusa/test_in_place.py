"""Restored at the addresses of the captured process nothing is patched; elsewhere everything is."""

from __future__ import annotations

import pytest

from c2c.systems.medusa import Artefact, OnDemand, analyse, make_artefact, restore, sides, validate
from c2c.systems.program import Arenas, DeviceFault, Emulated
from experiments.papers.medusa.processes import Process, emulated_device, key_of
from experiments.papers.medusa.synthetic import Shape, random_program
from tests.systems.medusa.cases import made

PROGRAMS = {1: random_program(Shape(seed=5, launches=14, threads=3))}


def start(seed: int, begins: dict[str, int] | None = None) -> Process:
    device = emulated_device(PROGRAMS, seed)
    return Process(PROGRAMS, seed, has_whims=False, device=device, arenas=Arenas(device, begins))


def captured() -> tuple[Process, Artefact]:
    original = start(1)
    first = original.capture()
    second = Process(PROGRAMS, 2, has_guards=True).capture()
    analysed = analyse(first, second, original.device.replace_address)
    assert not analysed.refusals
    return original, make_artefact(key_of(PROGRAMS, "small"), first, analysed)


def test_a_process_that_reserves_the_same_addresses_patches_nothing() -> None:
    original, artefact = captured()
    assert any(node.patches for node in artefact.graphs[0].nodes)
    process = start(7, dict(artefact.arenas))  # its threads come in another order
    found = restore(artefact, process.recorder, process.triggered())
    assert found.is_in_place
    device = process.device
    nodes = [n for n in device.nodes(found.graphs[1]) if device.node_kind(n) == "kernel"]
    wanted = [n.parameters for n in artefact.graphs[0].nodes if n.kind == "kernel"]
    assert [device.kernel_of(n).parameters for n in nodes] == wanted
    outputs = []
    for each, graph in ((process, found.graphs[1]), (original, original.graphs[1])):
        executable = each.device.instantiate(graph)
        for name, at, nbytes in original.regions(1).given:
            each.device.write(each.recorder.addresses[name] + at, bytes(nbytes))
        each.device.launch_graph(executable)
        left = original.regions(1).left
        places = [(found.addresses[artefact.allocations.index(n)] + at, k) for n, at, k in left]
        outputs.append([each.device.read(address, k) for address, k in places])
    assert outputs[0] == outputs[1]


def test_where_the_addresses_are_taken_it_patches() -> None:
    _, artefact = captured()
    device = emulated_device(PROGRAMS, 7)
    taken = next(iter(artefact.arenas.values()))
    device.reserve(1 << 20, taken)
    process = Process(
        PROGRAMS, 7, has_whims=False, device=device, arenas=Arenas(device, artefact.arenas)
    )
    found = restore(artefact, process.recorder, process.triggered())
    assert not found.is_in_place
    assert set(found.graphs) == {1}


def test_a_range_has_no_memory_until_it_is_put_there() -> None:
    device = Emulated(3)
    begin = device.reserve(8 << 20, 0x2000_0000_0000)
    assert begin == 0x2000_0000_0000
    assert device.reserve(8 << 20, begin) != begin
    with pytest.raises(DeviceFault, match="illegal address"):
        device.read(begin, 1)
    device.allocate_at(begin, 2 << 20)
    device.write(begin, b"here")
    assert device.read(begin, 4) == b"here"
    with pytest.raises(DeviceFault, match="has memory already"):
        device.allocate_at(begin + (1 << 20), 2 << 20)
    with pytest.raises(DeviceFault, match="no reserved range"):
        device.allocate_at(begin + (7 << 20), 2 << 20)


def test_a_graph_is_built_when_it_is_asked_for_and_once() -> None:
    process = Process(made().original.programs, 21)
    held = OnDemand(made().artefact, process.recorder, process.triggered())
    assert not held.restored().graphs
    graph = held.graph(1)
    assert graph is not None
    assert held.graph(1) == graph
    assert held.graph(2) is None  # it was not captured
    found = held.restored()
    assert found.nodes == len(made().artefact.graphs[0].nodes)
    case = made()
    one, two = sides(
        case.first, case.original.functions, case.original.device, case.artefact, found,
        process.device, 1,
    )  # fmt: skip
    first = (one, case.original.device.instantiate(case.original.graphs[1]))
    second = (two, process.device.instantiate(graph))
    assert validate(first, second, case.original.regions(1))
