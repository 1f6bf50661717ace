"""Batch sizes of one topology share an executable graph, and leave what their own would leave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from c2c.systems.medusa import OnDemand, Templates, sides, topology_of, validate
from c2c.systems.program import DeviceFault
from experiments.papers.medusa.processes import Process
from tests.systems.medusa.cases import made


def test_only_parameters_may_differ() -> None:
    graph = made().artefact.graphs[0]
    nodes = graph.nodes
    k = next(k for k, node in enumerate(nodes) if node.patches)
    other = replace(nodes[k], parameters=tuple(bytes(len(p)) for p in nodes[k].parameters))
    same = replace(graph, batch=2, nodes=(*nodes[:k], other, *nodes[k + 1 :]))
    assert topology_of(same) == topology_of(graph)
    assert topology_of(replace(graph, nodes=nodes[:-1])) != topology_of(graph)
    assert topology_of(replace(graph, edges=())) != topology_of(graph)


def test_by_turns_each_batch_size_runs_as_itself() -> None:
    case, first = made(), made().artefact.graphs[0]
    k = next(k for k, n in enumerate(first.nodes) if n.kind == "kernel" and n.grid[0] > 0)
    larger = replace(first.nodes[k], grid=(first.nodes[k].grid[0] + 1, 1, 1))
    second = replace(first, batch=2, nodes=(*first.nodes[:k], larger, *first.nodes[k + 1 :]))
    artefact = replace(case.artefact, graphs=(first, second))
    process = Process(case.original.programs, 31)
    held = OnDemand(artefact, process.recorder, process.triggered())
    templates = Templates(process.device, held, artefact.graphs)
    assert templates.topologies == 1
    assert templates.executable(3) is None  # it was not captured
    wanted = (
        sides(
            case.first, case.original.functions, case.original.device, case.artefact,
            held.restored(), process.device, 1,
        )[0],
        case.original.device.instantiate(case.original.graphs[1]),
    )  # fmt: skip
    for batch in (1, 2, 1):
        shared = templates.executable(batch)
        assert shared is not None
        side = sides(
            case.first, case.original.functions, case.original.device, case.artefact,
            held.restored(), process.device, 1,
        )[1]  # fmt: skip
        same = validate(wanted, (side, shared), case.original.regions(1))
        assert same == (batch == 1)


def test_where_the_device_refuses_the_parameters_the_executable_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = made().artefact.graphs[0]
    artefact = replace(made().artefact, graphs=(first, replace(first, batch=2)))
    process = Process(made().original.programs, 31)
    held = OnDemand(artefact, process.recorder, process.triggered())
    templates = Templates(process.device, held, artefact.graphs)

    def update(executable: int, graph: int) -> None:
        raise DeviceFault(f"{executable} is not given {graph}")

    monkeypatch.setattr(process.device, "update", update)
    one = templates.executable(1)
    two = templates.executable(2)
    assert one is not None
    assert two is not None
    process.device.launch_graph(two)
    with pytest.raises(KeyError):  # only one is held
        process.device.launch_graph(one)


def test_another_topology_is_refused() -> None:
    process = Process(made().original.programs, 33)
    held = OnDemand(made().artefact, process.recorder, process.triggered())
    graph = held.graph(1)
    assert graph is not None
    executable = process.device.instantiate(graph)
    empty = process.device.create_graph()
    process.device.add_empty(empty)
    with pytest.raises(DeviceFault, match="another topology"):
        process.device.update(executable, empty)
