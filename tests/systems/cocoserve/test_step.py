"""The predicted step of a placement, and the placement with the least one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf

import pytest

from c2c.cost import step_time as engine_step
from c2c.errors import SettingError
from c2c.hardware import Node, load_node
from c2c.models import load_spec
from c2c.systems.cocoserve import Placement, even_rows
from c2c.systems.cocoserve.fastest import fastest
from c2c.systems.cocoserve.modules import kv_bytes, module_of
from c2c.systems.cocoserve.step import Devices, devices_of, step_time

SPEC = load_spec("llama-2-13b")
NODE = load_node("a100_40_pcie_x4")
CONTEXT = 300


def devices(layers: int = 40, node: Node = NODE, most_rows: int = 32) -> Devices:
    return devices_of(replace(SPEC, layers=layers), node, most_rows=most_rows)


FORTY = devices()


def seconds(placement: Placement, batch: int = 15, of: Devices = FORTY) -> float:
    return step_time(placement, of, batch=batch, context=CONTEXT).seconds


def test_unscaled_it_is_the_engines_step() -> None:
    whole = engine_step(
        FORTY.tables[0], decode_seqs=15, decode_kv_tokens=15 * CONTEXT, head_rows=15
    )
    assert seconds(Placement.unscaled(40)) == pytest.approx(whole.seconds)


def test_copies_of_thirty_layers_gain_little_when_decoding() -> None:
    """Weights are read whatever the rows: 1.05, where Eq. 4 has 1.60."""
    start = Placement.unscaled(40)
    gain = seconds(start) / seconds(start.replicated(range(30), 1))
    assert gain == pytest.approx(1.05, abs=0.01)


def test_a_layer_lasts_as_long_as_its_slowest_copy() -> None:
    start = Placement.unscaled(40)
    step = step_time(start.replicated(range(30), 1), FORTY, batch=15, context=CONTEXT)
    halves = 30 * FORTY.layer_s(0, 8, CONTEXT) + 10 * FORTY.layer_s(0, 15, CONTEXT)
    assert step.layers_s == pytest.approx(halves)
    assert (step.transfers, step.moved_bytes) == (2, 2 * 7 * 5120 * 2)
    assert step.transfers_s == pytest.approx(2 * (4e-6 + 7 * 5120 * 2 / 25e9))


def test_transfers_share_a_slot_and_not_the_wires_of_two() -> None:
    """Five rows each to three devices: over one slot they add up, over wires they do not."""
    start = Placement.unscaled(4)
    for device in (1, 2):
        start = start.replicated(range(4), device)
    (slot,) = NODE.links
    wires = replace(NODE, links=(replace(slot, kind="nvlink"),))
    found = {}
    for node in (NODE, wires):
        step = step_time(start, devices(4, node), batch=15, context=CONTEXT)
        found[node.links[0].kind] = step.transfers_s / 2 - 4e-6
        assert step.moved_bytes == 2 * 10 * 5120 * 2
    assert found["pcie"] == pytest.approx(2 * found["nvlink"])


def test_a_part_away_from_its_layer_costs_two_crossings() -> None:
    start = Placement.unscaled(40)
    away = step_time(start.migrated([3], 0, 1, "kv"), FORTY, batch=15, context=CONTEXT)
    assert (away.transfers, away.moved_bytes) == (2, 2 * 15 * 5120 * 2)
    assert away.layers_s == pytest.approx(
        step_time(start, FORTY, batch=15, context=CONTEXT).layers_s
    )


def test_a_slower_device_takes_fewer_rows() -> None:
    mixed = replace(NODE, gpus=("a100_40", "l40s"))
    of = devices(40, mixed)
    made = fastest(of, {0: 80e9, 1: 90e9}, batch=32, context=2000)
    first, other = made.partitions(32)[0].values()
    assert first > other
    even = replace(made, rows=(even_rows(32, 2),) * 40)
    timed = [step_time(p, of, batch=32, context=2000).seconds for p in (made, even)]
    assert timed[0] < timed[1]


@pytest.mark.parametrize(("layers", "batch", "count"), [(4, 4, 2), (3, 3, 3)])
@pytest.mark.parametrize("copies", [1, 2, 9])
@pytest.mark.parametrize("gbps", [25.0, 0.02])
def test_the_fastest_is_within_half_a_percent_of_the_best_of_all(
    layers: int, batch: int, count: int, copies: int, gbps: float
) -> None:
    (slot,) = NODE.links
    node = replace(NODE, gpus=NODE.gpus[:count], links=(replace(slot, gbps=gbps),))
    of = devices(layers, node, batch)
    row, each = kv_bytes(SPEC, CONTEXT), module_of(SPEC, "layer").allocated_bytes
    room = copies * each + 3.5 * row
    made = fastest(
        of, {d: 40e9 if d == 0 else room for d in range(count)}, batch=batch, context=CONTEXT
    )
    splits = [r for r in product(range(batch + 1), repeat=count) if sum(r) == batch]
    best = inf
    for rows in product(splits, repeat=layers):
        used = [sum(each + r[d] * row for r in rows if r[d]) for d in range(1, count)]
        if max(used) > room:
            continue
        plan = Placement((tuple(range(count)),) * layers, rows)
        best = min(best, seconds(plan, batch, of))
    assert seconds(made, batch, of) == pytest.approx(best, rel=5e-3)


def test_a_batch_that_memory_ends_has_room_by_copies() -> None:
    """KV of 32 rows of 1,000 tokens is 26 GB; the first device has room for half of it."""
    free = {0: 14e9, 1: 42e9, 2: 42e9}
    made = fastest(FORTY, free, batch=32, context=1000)
    kept = sum(part.get(0, 0) for part in made.partitions(32)) * kv_bytes(SPEC, 1000)
    assert kept <= free[0]
    with pytest.raises(SettingError, match=r"batch=32: .*It needs 26,214,400,000 bytes"):
        fastest(FORTY, {0: 14e9, 1: 1e9}, batch=32, context=1000)


def test_wrong_values_are_named() -> None:
    start = Placement.unscaled(40)
    for field, call in {
        "copies": lambda: seconds(Placement.unscaled(39)),
        "batch": lambda: seconds(start, 33),
        "device": lambda: seconds(start.replicated([0], 4)),
    }.items():
        with pytest.raises(SettingError) as refused:
            call()
        assert refused.value.field == field
    (slot,) = NODE.links
    apart = devices(40, replace(NODE, links=(replace(slot, between=(0, 1)),)))
    with pytest.raises(SettingError, match="device=2: expected a device with a link to"):
        seconds(start.replicated([0], 2), of=apart)
