"""The emulated device fails where a GPU would, and shows every wrong word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.systems.program import (
    PROGRAMMATIC,
    Access,
    CopyCall,
    DeviceFault,
    Edge,
    Emulated,
    Entry,
    FillCall,
    KernelCall,
    LaunchAttribute,
    Library,
    ParameterDeclaration,
    write_image,
)

POINTER = ParameterDeclaration(8, 8, True)
WORD = ParameterDeclaration(4, 4)
ADD = Entry(
    "add",
    (POINTER, POINTER, WORD),
    (Access(0, 0, "pointer", "r", 16), Access(1, 0, "pointer", "w", 16)),
    allocates=False,
)
MAPPED = Entry("mapped", (ParameterDeclaration(128, 64),), (Access(0, 0, "map", "w", 8),), False)
IMAGE = write_image([ADD, MAPPED])


def word(value: int, nbytes: int = 8) -> bytes:
    return value.to_bytes(nbytes, "little")


class World:
    def __init__(self, seed: int = 1) -> None:
        self.device = Emulated(seed)
        module = self.device.load_module(IMAGE)
        self.add = self.device.get_function(module, "add")
        self.base = self.device.allocate(1 << 20)
        self.device.write(self.base, bytes(range(64)))

    def call(self, read: int = 0, write: int = 512, value: int = 3) -> KernelCall:
        parameters = (word(self.base + read), word(self.base + write), word(value, 4))
        return KernelCall(self.add, (1, 1, 1), (32, 1, 1), 0, parameters)

    def run(self, call: KernelCall) -> bytes:
        self.device.launch(call)
        return self.device.read(self.base + 512, 16)


def test_addresses_do_not_matter_and_everything_else_does() -> None:
    one, two = World(1), World(2)
    assert one.base != two.base
    wanted = one.run(one.call())
    assert two.run(two.call()) == wanted
    assert two.run(two.call(read=16)) != wanted
    assert two.run(two.call(value=4)) != wanted
    assert two.run(two.call()._replace(grid=(2, 1, 1))) != wanted
    cluster = (LaunchAttribute(4, bytes(64)),)
    assert two.run(two.call()._replace(attributes=cluster)) != wanted
    assert two.run(two.call(write=516)) != wanted


def test_memory_given_back_cannot_be_read() -> None:
    world = World()
    world.device.release(world.base)
    with pytest.raises(DeviceFault, match="illegal address"):
        world.device.launch(world.call())


def test_what_nobody_wrote_differs_between_processes() -> None:
    one, two = World(1), World(2)
    assert one.device.read(one.base + 4096, 32) != two.device.read(two.base + 4096, 32)


def test_a_capture_runs_nothing_and_its_graph_runs_it() -> None:
    world = World()
    before = world.device.read(world.base + 512, 16)
    world.device.begin_capture()
    with pytest.raises(DeviceFault, match="under way"):
        world.device.begin_capture()
    with pytest.raises(DeviceFault, match="cannot be waited for"):
        world.device.synchronise()
    world.device.launch(world.call())
    world.device.copy(CopyCall(world.base + 1024, world.base + 512, 16))
    assert world.device.captured_nodes() == 2
    graph = world.device.end_capture()
    assert world.device.read(world.base + 512, 16) == before
    assert world.device.edges(graph) == (Edge(0, 1),)
    world.device.launch_graph(world.device.instantiate(graph))
    assert world.device.read(world.base + 512, 16) == World().run(World().call())
    assert world.device.read(world.base + 1024, 16) == world.device.read(world.base + 512, 16)


@given(seed=st.integers(0, 200))
def test_nodes_without_an_edge_run_in_any_order(seed: int) -> None:
    device = Emulated(seed)
    base = device.allocate(4096)
    graph = device.create_graph()
    for value in (1, 2):
        device.add_fill(graph, FillCall(base, value, 4, 4))
    kept = device.instantiate(graph)
    seen = set()
    for _ in range(40):
        device.launch_graph(kept)
        seen.add(device.read(base, 4))
    assert len(seen) == 2
    device.add_edges(graph, [Edge(0, 1, 1, 0, PROGRAMMATIC)])
    device.launch_graph(device.instantiate(graph))
    assert device.read(base, 4) == word(2, 4)


def test_functions_are_loaded_before_they_are_used() -> None:
    library = Library("hidden.so", (IMAGE,), is_hidden=True)
    device = Emulated(1, [library])
    assert device.symbol("hidden.so", "add") is None
    module = device.function_module(device.library_function("hidden.so", "mapped"))
    by_name = {device.function_name(f): f for f in device.functions(module)}
    call = KernelCall(by_name["add"], (1, 1, 1), (1, 1, 1), 0, (bytes(8), bytes(8), bytes(4)))
    with pytest.raises(DeviceFault, match="not loaded"):
        device.add_kernel(device.create_graph(), call)
    device.ensure_loaded(by_name["add"])
    device.add_kernel(device.create_graph(), call)


def test_only_the_driver_changes_a_tensor_map() -> None:
    device = Emulated(1)
    function = device.get_function(device.load_module(IMAGE), "mapped")
    base = device.allocate(4096)
    made = device.replace_address(bytes(range(128)), base)
    call = KernelCall(function, (1, 1, 1), (1, 1, 1), 0, (made,))
    device.launch(call)
    by_hand = word(base + 8) + made[8:]
    with pytest.raises(DeviceFault, match="has not made"):
        device.launch(call._replace(parameters=(by_hand,)))
    device.launch(call._replace(parameters=(device.replace_address(made, base + 8),)))


def test_a_call_that_cannot_be_is_refused() -> None:
    world = World()
    with pytest.raises(DeviceFault, match="parameters of"):
        world.device.launch(world.call()._replace(parameters=(bytes(8),)))
    with pytest.raises(DeviceFault, match="shared memory"):
        world.device.launch(world.call()._replace(shared_bytes=64 << 10))
    world.device.set_shared_limit(world.add, 100 << 10)
    world.device.launch(world.call()._replace(shared_bytes=64 << 10))
    with pytest.raises(DeviceFault, match="no function"):
        world.device.launch(world.call()._replace(function=7))
    graph = world.device.create_graph()
    for _ in range(2):
        world.device.add_empty(graph)
    world.device.add_edges(graph, [Edge(0, 1), Edge(1, 0)])
    with pytest.raises(DeviceFault, match="cycle"):
        world.device.instantiate(graph)
    with pytest.raises(DeviceFault, match="out of memory"):
        world.device.allocate(1 << 40)
