"""The driver's answers where they are not those of every day. Needs no driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from c2c.systems.program import DeviceFault, Emulated
from c2c.systems.program.allocator import SEGMENT_BYTES, Arenas
from c2c.systems.program.driver import Driver, device, graphs

INVALID_VALUE, NOT_SUPPORTED = 1, 801
ON_HOST, ON_DEVICE = 1, 2


def reader(monkeypatch: pytest.MonkeyPatch, **calls: Any) -> graphs.Graphs:
    kinds = dict.fromkeys(("CUfunction", "CUgraphNode", "CUlaunchAttributeID"), int)
    monkeypatch.setattr(graphs, "bindings", lambda: SimpleNamespace(**kinds, **calls))
    return graphs.Graphs()


def test_parameters_end_with_the_one_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    made = reader(monkeypatch, cuFuncGetParamInfo=lambda _, k: (INVALID_VALUE * (k == 2), 8 * k, 8))
    assert made.parameter_places(1) == ((0, 8), (8, 8))


def test_a_driver_that_cannot_tell_parameters_is_not_taken_for_one_without_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = reader(monkeypatch, cuFuncGetParamInfo=lambda *_: (NOT_SUPPORTED, 0, 0))
    with pytest.raises(DeviceFault, match="cuFuncGetParamInfo: 801"):
        made.parameter_places(1)


def test_parameters_in_one_buffer_are_not_read_as_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(func=1, kernelParams=0)
    made = reader(
        monkeypatch,
        cuFuncGetParamInfo=lambda _, k: (INVALID_VALUE * (k == 1), 0, 8),
        cuGraphKernelNodeGetParams=lambda _: (0, found),
    )
    with pytest.raises(DeviceFault, match="parameters are one buffer"):
        made.kernel_of(7)


ROW = {
    "srcMemoryType": ON_DEVICE, "dstMemoryType": ON_DEVICE, "Height": 1, "Depth": 1, "srcY": 0,
    "srcZ": 0, "dstY": 0, "dstZ": 0, "srcXInBytes": 8, "dstXInBytes": 0, "srcDevice": 4096,
    "dstDevice": 8192, "WidthInBytes": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"srcMemoryType": ON_HOST}, {"dstMemoryType": ON_HOST}, {"Height": 2}, {"Depth": 3},
        {"srcY": 1}, {"srcZ": 1}, {"dstY": 1}, {"dstZ": 1},
    ],
)  # fmt: skip
def test_a_copy_that_is_no_row_is_not_read_as_one(
    change: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for odd in (False, True):
        found = SimpleNamespace(**ROW | (change if odd else {}))
        made = reader(monkeypatch, cuGraphMemcpyNodeGetParams=lambda _, f=found: (0, f))
        if odd:
            with pytest.raises(DeviceFault, match="not one row of device memory"):
                made.copy_of(3)
        else:
            assert made.copy_of(3) == (8192, 4104, 64)


@pytest.mark.parametrize(("kind", "name"), [(0, "kernel"), (5, "empty"), (6, "6"), (7, "7")])
def test_events_are_nothing_empty(kind: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait for an event outside of the graph would be for nothing."""
    made = reader(monkeypatch, cuGraphNodeGetType=lambda _: (0, kind))
    assert made.node_kind(1) == name


def test_a_library_that_is_not_there_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "bindings", SimpleNamespace)
    driver = Driver.__new__(Driver)
    driver._libraries = {}
    with pytest.raises(DeviceFault, match=r"libnowhere\.so cannot be opened"):
        driver.symbol("libnowhere.so", "gemm")


def test_ranges_are_whole_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's memory need not be a multiple of what its addresses come in."""
    made = Emulated(1, memory_bytes=(80 << 30) - 65536)
    asked: list[tuple[int, int]] = []
    reserve = made.reserve

    def noted(nbytes: int, address: int) -> int:
        asked.append((nbytes, address))
        return reserve(nbytes, address)

    monkeypatch.setattr(made, "reserve", noted)
    arenas = Arenas(made)
    for pool in ("a", "b"):
        arenas.segment(pool, SEGMENT_BYTES)
    assert asked[0][0] >= (80 << 30) - 65536
    assert not any(value % SEGMENT_BYTES for pair in asked for value in pair)
