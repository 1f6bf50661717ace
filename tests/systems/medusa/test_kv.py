"""The stored size of the KV cache, and when it does not hold."""

from __future__ import annotations

import pytest

from c2c.errors import SettingError
from c2c.systems.medusa import KvRecord, kv_bytes_of, stored_kv_bytes
from c2c.systems.program import Emulated
from pallas_kernels.repository import RepositoryWarning

GIB = 1 << 30


def test_graphs_are_counted_once() -> None:
    plain = KvRecord(free_bytes=30 * GIB, held_bytes=10 * GIB)
    assert kv_bytes_of(plain, 0.9) == 26 * GIB
    with_graphs = KvRecord(free_bytes=30 * GIB, held_bytes=10 * GIB, graph_bytes=2 * GIB)
    assert kv_bytes_of(with_graphs, 0.9) == 24 * GIB


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.1])
def test_a_fraction_outside_of_the_whole_is_refused(fraction: float) -> None:
    with pytest.raises(SettingError, match=r"memory_fraction=.*\(0, 1\]"):
        kv_bytes_of(KvRecord(GIB, GIB), fraction)
    with pytest.raises(SettingError, match="enough for the weights"):
        kv_bytes_of(KvRecord(GIB, GIB), 0.4)


def test_the_stored_size_is_used_where_as_much_is_free() -> None:
    device = Emulated(1, memory_bytes=40 * GIB)
    record = KvRecord(free_bytes=30 * GIB, held_bytes=10 * GIB)
    device.allocate(10 * GIB)
    assert stored_kv_bytes(record, device, 10 * GIB, 0.9) == 26 * GIB
    device.allocate(GIB)  # by this process, which says so
    assert stored_kv_bytes(record, device, 11 * GIB, 0.9) == 26 * GIB
    device.allocate(GIB)  # by another one
    with pytest.warns(RepositoryWarning, match="profiled again"):
        assert stored_kv_bytes(record, device, 11 * GIB, 0.9) is None
