"""Modules, operations and memory, against the paper's tables and by hand."""

from __future__ import annotations

import pytest

from c2c.errors import SettingError
from c2c.hardware import load_node
from c2c.models import load_spec, weight_bytes
from c2c.systems.cocoserve import Operation, Placement
from c2c.systems.cocoserve.costs import (
    check_room,
    fitted_claims,
    memory_of,
    moved_bytes,
    operation_bytes,
    operation_costs,
    operation_s,
)
from c2c.systems.cocoserve.modules import kv_bytes, layer_bytes, module_of, modules
from experiments.claims import load_claims

MIB = 1 << 20
SPEC = load_spec("llama-2-13b")
NODE = load_node("a100_40_pcie_x4")
COSTS = operation_costs()


@pytest.mark.parametrize(
    ("names", "mib", "gflops"),
    [
        ("q k v o", 50, 13.42), ("gate up down", 135, 36.24), ("attention", 200, 55.03),
        ("layer", 605, 163.75), ("kv", 0, 0),
    ],
)  # fmt: skip
def test_table_1(names: str, mib: int, gflops: float) -> None:
    for name in names.split():
        module = module_of(SPEC, name)
        assert module.bytes == mib * MIB
        assert module.flops(256) / 1e9 == pytest.approx(gflops, abs=0.005)


def test_kv_and_layers_by_bytes() -> None:
    assert kv_bytes(SPEC) == 20_480
    for name in ("llama-2-13b", "llama-2-70b", "mixtral-8x7b", "gpt-oss-20b", "qwen3-32b"):
        spec = load_spec(name)
        each, outside = layer_bytes(spec)
        assert outside + spec.layers * each == weight_bytes(spec)
        parts = modules(spec)
        assert parts["attention"].bytes + parts["feed_forward"].bytes == parts["layer"].bytes
        assert 0 <= each - parts["layer"].bytes < 0.001 * each + spec.experts * 64 * spec.hidden


def operation(kind: str, layers: int) -> Operation:
    return Operation(kind=kind, layers=tuple(range(layers)), device=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layers", "mib"), [(1, 1107), (10, 6579), (20, 12_659), (30, 18_739), (40, 24_819)]
)
def test_memory_of_table_2(layers: int, mib: int) -> None:
    for kind in ("replicate", "migrate"):
        assert operation_bytes(operation(kind, layers), SPEC, COSTS) == mib * MIB


def test_only_the_first_row_of_table_2_the_coordination_and_one_latency_are_fitted() -> None:
    claims = load_claims()
    assert fitted_claims() == {
        "cocoserve.table2.n1", "cocoserve.sec65.coordination", "cocoserve.fig6b.baseline_latency",
    }  # fmt: skip
    one = claims["cocoserve.table2.n1"].value
    assert operation_bytes(operation("migrate", 1), SPEC, COSTS) == one["memory_mb"] * MIB
    migrated = operation_s(operation("migrate", 1), SPEC, NODE, COSTS)
    assert migrated == pytest.approx(one["migration_s"], abs=1e-6)
    replicated = operation_s(operation("replicate", 1), SPEC, NODE, COSTS)
    coordination_s = claims["cocoserve.sec65.coordination"].value / 1e3
    assert replicated - migrated == pytest.approx(coordination_s)


def test_operations_by_bytes_and_link() -> None:
    ten = operation("migrate", 10)
    longer = operation_s(ten, SPEC, NODE, COSTS) - operation_s(
        operation("migrate", 1), SPEC, NODE, COSTS
    )
    assert longer == pytest.approx(9 * 605 * MIB / 25e9)
    assert moved_bytes(operation("evict", 3), SPEC, kv_tokens=9) == 0  # without KV
    home = Operation(kind="evict", layers=(0, 1), source=1, device=0, with_kv=True)
    assert moved_bytes(home, SPEC, kv_tokens=100) == 2 * 100 * 20_480
    assert operation_s(home, SPEC, NODE, COSTS, kv_tokens=100) == pytest.approx(
        2 * 100 * 20_480 / 25e9, rel=0.05
    )
    attention = Operation(kind="migrate", layers=(0,), device=1, module="attention")
    assert operation_bytes(attention, SPEC, COSTS) == (499 + 200) * MIB


def test_memory_by_device() -> None:
    each, outside = layer_bytes(SPEC)
    start = Placement.unscaled(40)
    (alone,) = memory_of(start, SPEC, COSTS, batch=15, context=300).values()
    assert (alone.weights, alone.process) == (weight_bytes(SPEC), 0)
    assert alone.kv == 15 * 300 * 819_200
    copied = memory_of(start.replicated(range(30), 1), SPEC, COSTS, batch=15, context=300)
    assert copied[1].weights == 30 * 608 * MIB
    assert copied[1].process == 499 * MIB
    assert copied[1].kv == 30 * 7 * 300 * 20_480
    assert copied[0].weights == alone.weights
    assert sum(h.kv for h in copied.values()) == alone.kv
    moved = memory_of(start.migrated([39], 0, 2), SPEC, COSTS, batch=15, context=300)
    assert moved[0].weights == outside + 39 * each
    assert moved[2].kv == 15 * 300 * 20_480
    parts = start.migrated([0], 0, 1, "kv").migrated([1], 0, 1, "attention")
    parts = parts.migrated([2], 0, 1, "down")
    away = memory_of(parts, SPEC, COSTS, batch=15, context=300)
    assert away[1].weights == (200 + 136) * MIB
    assert away[1].kv == 2 * 15 * 300 * 20_480
    assert away[0].weights == alone.weights - (200 + 135) * MIB


def test_wrong_values_are_named() -> None:
    with pytest.raises(SettingError, match="module='knee': expected one of attention"):
        module_of(SPEC, "knee")
    with pytest.raises(SettingError, match="device=9: expected 0 to 1 of l40s_pcie"):
        operation_s(
            Operation(kind="migrate", layers=(0,), device=9), SPEC, load_node("l40s_pcie"), COSTS
        )
    held = memory_of(
        Placement.unscaled(40).replicated(range(40), 1), SPEC, COSTS, batch=1, context=1
    )
    check_room(held, {0: 40e9, 1: 40e9})
    with pytest.raises(
        SettingError, match=r"device=1: .*26,\d{3},\d{3},\d{3} bytes are needed, 7 "
    ):
        check_room(held, {0: 40e9, 1: 7.0})
