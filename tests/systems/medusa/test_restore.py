"""Restoring: mutations are caught, and what cannot be restored is captured with a warning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from c2c.systems.medusa import (
    Artefact,
    Graph,
    Node,
    Side,
    analyse,
    first_difference,
    restore,
    sides,
    validate,
)
from c2c.systems.medusa.restore import build
from c2c.systems.program import Allocator, Edge, Emulated, FillCall, Recorder
from experiments.papers.medusa.processes import Process, emulated_device
from pallas_kernels.repository import RepositoryWarning
from tests.systems.medusa.cases import made, restored


def both(artefact: Artefact) -> tuple[tuple[Side, int], tuple[Side, int]]:
    """Return the original and the restored side with their executable graphs."""
    case = made()
    process, found = restored(artefact)
    one, two = sides(
        case.first, case.original.functions, case.original.device,
        replace(artefact, graphs=case.artefact.graphs), found, process.device, 1,
    )  # fmt: skip
    two = replace(two, graph=artefact.graphs[0])
    first = (one, case.original.device.instantiate(case.original.graphs[1]))
    return first, (two, process.device.instantiate(found.graphs[1]))


def with_nodes(artefact: Artefact, nodes: tuple[Node, ...]) -> Artefact:
    return replace(artefact, graphs=(replace(artefact.graphs[0], nodes=nodes),))


def test_the_restored_graph_leaves_what_the_original_leaves() -> None:
    original, ours = both(made().artefact)
    regions = made().original.regions(1)
    assert validate(original, ours, regions)
    assert first_difference(original[0], ours[0], regions) is None


def test_a_shifted_index_is_caught_and_found() -> None:
    artefact = made().artefact
    nodes = artefact.graphs[0].nodes
    caught = seen = 0
    for number, node in enumerate(nodes):
        for k, patch in enumerate(node.patches):
            if node.kind != "kernel":
                continue
            shifted = patch._replace(allocation=(patch.allocation + 1) % 5, offset=0)
            if (shifted.allocation, shifted.offset) == (patch.allocation, patch.offset):
                continue
            patches = (*node.patches[:k], shifted, *node.patches[k + 1 :])
            changed = (*nodes[:number], replace(node, patches=patches), *nodes[number + 1 :])
            original, ours = both(with_nodes(artefact, changed))
            regions = made().original.regions(1)
            found = first_difference(original[0], ours[0], regions)
            if found is None:  # one past a buffer's end: nothing is read or written there
                assert validate(original, ours, regions)
                continue
            assert found.node == number
            assert found.patches == patches
            caught += 1
            # what only a buffer that is freed before the end shows, outputs do not
            seen += not validate(original, ours, regions)
    assert caught >= seen >= 10


def test_two_swapped_kernels_are_caught() -> None:
    artefact = made().artefact
    nodes = list(artefact.graphs[0].nodes)
    k, j = (
        (k, j)
        for k, a in enumerate(nodes)
        for j, b in enumerate(nodes[:k])
        if a.kind == b.kind == "kernel" and (a.kernel, a.patches) != (b.kernel, b.patches)
    ).__next__()
    nodes[k], nodes[j] = nodes[j], nodes[k]
    original, ours = both(with_nodes(artefact, tuple(nodes)))
    regions = made().original.regions(1)
    assert not validate(original, ours, regions)
    found = first_difference(original[0], ours[0], regions)
    assert found is not None
    assert found.node == j


def test_a_dropped_free_is_caught() -> None:
    artefact = made().artefact
    frees = [k for k, step in enumerate(artefact.steps) if not step.nbytes]
    assert frees
    for k in frees:
        steps = (*artefact.steps[:k], *artefact.steps[k + 1 :])
        with pytest.warns(RepositoryWarning, match=r"All graphs are captured"):
            _, found = restored(replace(artefact, steps=steps))
        assert not found.graphs


def test_a_start_that_differs_is_captured_and_says_where() -> None:
    artefact = made().artefact
    process = Process(made().original.programs, 5)
    process.recorder.allocate(100, thread="t0")
    with pytest.warns(RepositoryWarning, match=r"event \d+ of the start \(100 bytes, thread t0\)"):
        assert not restore(artefact, process.recorder).graphs
    empty = Emulated(1)
    with pytest.warns(RepositoryWarning, match="events fewer than in the captured start"):
        assert not restore(artefact, Recorder(empty, Allocator(empty))).graphs
    larger = artefact.steps[0]._replace(nbytes=artefact.steps[0].nbytes + 1)
    process = Process(made().original.programs, 5)
    changed = replace(artefact, steps=(larger, *artefact.steps[1:]))
    with pytest.warns(RepositoryWarning, match=r"event \d+ of the start is"):
        assert not restore(changed, process.recorder).graphs


def test_a_kernel_that_no_trigger_loads_leaves_its_graphs_to_be_captured() -> None:
    artefact = made().artefact
    hidden = {k for k, kernel in enumerate(artefact.kernels) if kernel.source == "module"}
    assert hidden & {n.kernel for n in artefact.graphs[0].nodes}
    process = Process(made().original.programs, 5)
    plain = Graph(2, (Node("empty"),), ())
    with pytest.warns(RepositoryWarning, match=r"not in a module that the triggers have loaded"):
        found = restore(replace(artefact, graphs=(*artefact.graphs, plain)), process.recorder, ())
    assert set(found.graphs) == {2}


def test_where_memory_does_not_suffice_all_is_captured_and_nothing_is_held() -> None:
    artefact = made().artefact
    programs = made().original.programs
    needed = Process(programs, 5).recorder.held_bytes
    for spare in (0, 1 << 20, 6 << 20):
        device = emulated_device(programs, 5)
        process = Process(programs, 5, device=device)
        device.allocate(device.free_bytes() - spare)  # by another process
        events = list(process.recorder.events)
        if spare == 6 << 20:
            assert set(restore(artefact, process.recorder, process.triggered()).graphs) == {1}
            continue
        with pytest.warns(RepositoryWarning, match=r"out of memory: .*\. All graphs are captured"):
            found = restore(artefact, process.recorder, process.triggered())
        assert not found.graphs
        assert process.recorder.events == events  # as if nothing had been tried
        assert process.recorder.held_bytes == needed


def test_a_start_after_a_failed_replay_captures_as_any_other() -> None:
    """The replay's allocations are given back and not counted."""
    case = made()
    frees = [k for k, step in enumerate(case.artefact.steps) if not step.nbytes]
    steps = case.artefact.steps[: frees[0]] + case.artefact.steps[frees[0] + 1 :]
    process = Process(case.original.programs, 5)
    with pytest.warns(RepositoryWarning, match=r"All graphs are captured"):
        assert not restore(replace(case.artefact, steps=steps), process.recorder).graphs
    captured = process.capture()
    analysed = analyse(captured, case.second, process.device.replace_address)
    assert not analysed.refusals
    assert set(analysed.allocations) == set(case.artefact.allocations)  # threads took turns


def test_a_device_that_refuses_a_node_leaves_its_graph_to_be_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    artefact = made().artefact
    process = Process(made().original.programs, 5)
    large = replace(artefact.graphs[0].nodes[-1], kind="kernel", kernel=0, shared_bytes=1 << 30)
    nodes = (*artefact.graphs[0].nodes, replace(large, parameters=(), patches=()))
    odd = replace(artefact.graphs[0], batch=2, nodes=nodes)
    destroyed: list[int] = []
    monkeypatch.setattr(process.device, "destroy_graph", destroyed.append)
    with pytest.warns(RepositoryWarning, match="The graph of batch size 2 is captured"):
        found = restore(
            replace(artefact, graphs=(odd, *artefact.graphs)), process.recorder, process.triggered()
        )
    assert set(found.graphs) == {1}
    assert len(destroyed) == 1


def test_only_the_batch_sizes_asked_for() -> None:
    process = Process(made().original.programs, 5)
    found = restore(made().artefact, process.recorder, process.triggered(), batches=())
    assert not found.graphs
    assert found.nodes == 0
    assert found.addresses


def test_graphs_inside_graphs() -> None:
    device = Emulated(1)
    base = device.allocate(4096)
    fill = tuple(v.to_bytes(8, "little") for v in (base, 7, 4, 2))
    inner = Graph(1, (Node("fill", parameters=fill), Node("empty")), (Edge(0, 1),))
    outer = Graph(1, (Node("child", child=inner), Node("empty")), (Edge(0, 1),))
    graph, count = build(device, outer, (), {})
    assert count == 3
    device.launch_graph(device.instantiate(graph))
    assert device.read(base, 8) == (7).to_bytes(4, "little") * 2
    assert device.fill_of(device.nodes(device.child_of(device.nodes(graph)[0]))[0]) == FillCall(
        base, 7, 4, 2
    )
