"""The controller's next operation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.models import load_spec
from c2c.systems.cocoserve import Estimate, Operation, Placement, sizes
from c2c.systems.cocoserve.controller import (
    ControllerSettings,
    Observation,
    Scaled,
    next_operation,
)

SIZES = {"layer": 10.0, "kv": 2.0, "attention": 4.0, "feed_forward": 6.0}
SETTINGS = ControllerSettings()
IDLE = Observation(
    now_s=10.0,
    utilisation={0: 0.5, 1: 0.0, 2: 0.0},
    free_bytes={0: 20.0, 1: 100.0, 2: 40.0},
    capacity_bytes={0: 100.0, 1: 100.0, 2: 100.0},
    late_share=0.0,
)
MODEL = Scaled(
    placement=Placement.unscaled(8), batch=15, sizes=SIZES, estimate=Estimate.counted(0.01)
)
EIGHT_WITH_COPIES = MODEL.placement.replicated([0, 1], 1).replicated([2], 2)
EVICTED = Operation(kind="evict", layers=(0,))


def after(seen: Observation, **changed: Any) -> Operation | None:
    return next_operation(replace(seen, **changed), SETTINGS, MODEL)


def test_copies_go_where_memory_is_free_and_leave_t_up() -> None:
    """Seven layers of 10 bytes leave 30 % of device 1; device 2 then has room for one."""
    first = next_operation(IDLE, SETTINGS, MODEL)
    assert first == Operation(kind="replicate", layers=(0, 1, 2, 3, 4, 5, 6), source=0, device=1)
    copied = replace(MODEL, placement=MODEL.placement.replicated(range(7), 1))
    free = {**IDLE.free_bytes, 1: 30.0}
    last = next_operation(replace(IDLE, free_bytes=free), SETTINGS, copied)
    assert last == Operation(kind="replicate", layers=(7,), source=0, device=2)
    full = {0: 20.0, 1: 30.0, 2: 30.0}
    assert next_operation(replace(IDLE, free_bytes=full), SETTINGS, copied) is None
    only = replace(MODEL, joined=(0, 2))
    assert next_operation(IDLE, SETTINGS, only) == Operation(
        kind="replicate", layers=(0,), device=2
    )


def test_copies_by_idle_time() -> None:
    busy = {0: 0.5, 1: 0.75, 2: 1.0}
    by_work = replace(SETTINGS, available="both")
    found = next_operation(replace(IDLE, utilisation=busy), by_work, MODEL)
    assert found == Operation(kind="replicate", layers=(0, 1), source=0, device=1)


def test_thresholds() -> None:
    assert after(IDLE, last_s=8.5) is None  # cool-down
    assert after(IDLE, last_s=8.0) is not None
    late = after(IDLE, late_share=0.11)
    assert late is not None
    assert (late.kind, late.layers, late.source, late.device) == ("migrate", (7,), 0, 1)
    between = ControllerSettings(t_down=0.3, theta=0.1)
    seen = replace(IDLE, late_share=0.2)
    assert next_operation(seen, between, MODEL) is None
    goes_on = next_operation(replace(seen, last=EVICTED), between, MODEL)
    assert goes_on is not None
    assert goes_on.kind == "migrate"
    # after relief copies need more room and fewer late requests
    tight = {0: 20.0, 1: 44.0, 2: 0.0}
    assert after(IDLE, free_bytes=tight) is not None
    assert after(IDLE, free_bytes=tight, last=EVICTED) is None
    assert after(IDLE, late_share=0.08) is not None
    assert after(IDLE, late_share=0.08, last=EVICTED) is None


def test_relief_without_room_evicts_then_lowers_the_batch_which_comes_back() -> None:
    none_free = {0: 0.0, 1: 0.0, 2: 0.0}
    late = replace(IDLE, free_bytes=none_free, late_share=0.5)
    copied = replace(MODEL, placement=MODEL.placement.replicated([3], 1))
    evicted = next_operation(late, SETTINGS, copied)
    assert evicted == Operation(kind="evict", layers=(3,), source=0, device=1, with_kv=True)
    assert next_operation(late, SETTINGS, MODEL) == Operation(kind="cap", rows=10)
    one = replace(MODEL, batch=1)
    assert next_operation(late, SETTINGS, one) is None
    back = next_operation(IDLE, SETTINGS, replace(MODEL, batch=12))
    assert back == Operation(kind="cap", rows=15)


def test_memory_that_ran_out_is_relieved_on_its_device() -> None:
    copied = replace(MODEL, placement=MODEL.placement.replicated([3, 4], 1))
    full = {0: 20.0, 1: 0.0, 2: 0.0}
    found = after(IDLE, out_of_memory=(0,))
    assert found is not None
    assert (found.module, found.with_kv) == ("layer", True)
    seen = replace(IDLE, out_of_memory=(1,), free_bytes=full)
    assert next_operation(seen, SETTINGS, copied) == Operation(
        kind="evict", layers=(3,), source=1, device=0, with_kv=True
    )


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 20), st.sampled_from([None, EVICTED]))
def test_an_operation_can_be_done(
    late: float, free: float, batch: int, last: Operation | None
) -> None:
    model = replace(MODEL, batch=batch)
    seen = replace(IDLE, late_share=late, free_bytes={0: 0.0, 1: 100 * free, 2: 10.0}, last=last)
    found = next_operation(seen, SETTINGS, model)
    if found is None:
        return
    if found.kind == "cap":
        assert 1 <= found.rows != batch
    elif found.kind == "replicate":
        assert len(found.layers) * SIZES["layer"] <= seen.free_bytes[found.device]
        model.placement.replicated(found.layers, found.device)
    else:
        assert SIZES[found.module] <= seen.free_bytes[found.device]
        model.placement.migrated(found.layers, found.source, found.device, found.module)


@pytest.mark.parametrize("late", [0.0, 1.0])
def test_a_constant_load_ends_in_rest_and_never_above_memory(late: float) -> None:
    """Copies until memory is full, or relief until one row is left; then nothing more."""
    model, kinds = replace(MODEL, placement=EIGHT_WITH_COPIES, batch=9), []
    seen = replace(IDLE, late_share=late)
    for _ in range(60):
        held = [sum(model.placement.holds(i, d) for i in range(8)) for d in range(3)]
        free = {d: 100.0 - SIZES["layer"] * count for d, count in enumerate(held)}
        assert min(free.values()) >= 0
        found = next_operation(replace(seen, free_bytes=free), SETTINGS, model)
        if found is None:
            break
        kinds.append(found.kind)
        placement = model.placement
        if found.kind == "replicate":
            placement = placement.replicated(found.layers, found.device)
        elif found.kind == "evict":
            placement = placement.evicted(found.layers, found.source)
        elif found.kind == "migrate":
            placement = placement.migrated(found.layers, found.source, found.device, found.module)
        model = replace(model, placement=placement, batch=found.rows or model.batch)
        seen = replace(seen, now_s=seen.now_s + 3.0, last=found, last_s=seen.now_s)
    assert found is None
    assert set(kinds) == ({"migrate", "cap"} if late else {"cap", "replicate"})
    assert model.batch == (1 if late else 15)


def test_sizes_of_modules() -> None:
    found = sizes(load_spec("llama-2-13b"), 100)
    kv = 100 * 20_480
    assert found["kv"] == kv
    assert found["layer"] == (608 << 20) + kv
    assert found["feed_forward"] == 408 << 20


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("t_up", 1.0), ("t_up", -0.1), ("t_down", 0.0), ("t_down", 1.5), ("cap", 0), ("theta", 0.2),
        ("period_s", 0.0), ("hysteresis", 1.0), ("cool_down_s", -1.0), ("batch_step", 0),
        ("available", "all"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(field: str, value: Any) -> None:
    with pytest.raises(SettingError) as refused:
        ControllerSettings(**{field: value})
    assert (refused.value.field, refused.value.value) == (field, value)
