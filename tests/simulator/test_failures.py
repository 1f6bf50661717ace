"""Chips that fail and return: every request ends once, what was answered stays, memory is empty."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.policies import (
    AtBacklog,
    GateAndTriage,
    LeastLoaded,
    Resident,
    Roofline,
    WhereWorkIs,
    WhileRoom,
)
from c2c.serving import FAIL_DEVICE, FAIL_NONE, Failure, Failures, ServingSetup, prepare
from c2c.serving.tables.state import HELD, IN_SERVICE
from c2c.simulator.failures import FailureSchedule
from c2c.simulator.shards import merged_stats, split
from c2c.workloads import Workload
from tests.simulator.test_shards import of_shard, run
from tests.simulator.worlds import in_both_forms, random_requests, requests, setup, simulate
from tests.tiers import tiered

MODELS = ("llama-3-3b", "llama-3-8b") * 3
TURNS: dict[str, Any] = {
    "turn": GateAndTriage(), "route": WhereWorkIs(), "place": LeastLoaded(), "scale": AtBacklog(),
    "alpha": Roofline(), "keep": WhileRoom(spare_bytes=0.05e9), "engines__residents": 2,
}  # fmt: skip
SYSTEMS: dict[str, dict[str, Any]] = {
    "streamed": {},
    "turns": TURNS,
    "resident": {"load": Resident(), "mig": "3x24gb", "starts_active": False},
    "prefixes": {"prefix_cache__hbm": True, "prefix_cache__host_bytes": 1e9},
}


def failing(made: ServingSetup, **how: Any) -> ServingSetup:
    return replace(made, failures=Failures(**how))


def lost(*events: tuple[float, int, float]) -> dict[str, Any]:
    return {"events": tuple(Failure(at_s=a, chip=c, repair_s=r) for a, c, r in events)}


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=2, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rate=st.sampled_from([1.0, 10.0, 100.0]),
    host_chips=st.integers(0, 3),
)
def test_every_request_ends_once_and_nothing_is_left(
    system: str, seed: int, rate: float, host_chips: int
) -> None:
    made = failing(
        setup(*MODELS, superchips=3, seed=seed % 1000, **SYSTEMS[system]),
        mtbf_hours=15.0 / 3600.0, repair_s=5.0, host_chips=host_chips,
    )  # fmt: skip
    block = random_requests(40, len(MODELS), rate, seed)
    records, stats, simulation = simulate(made, block)
    assert records.id.tolist() == list(range(len(block)))
    assert stats.finished + stats.failed == len(block)
    assert set(records.failure) <= {FAIL_NONE, FAIL_DEVICE}
    done = records[records.failure == FAIL_NONE]
    assert (done.output_tokens == block.output_tokens[done.id]).all()
    assert (done.first_token_s >= done.arrival_s).all()
    state = simulation.state
    assert not state.device.kv_bytes.any()
    there = state.device.service == IN_SERVICE
    assert there.sum() == len(there) - sum(
        state.chip[r.chip].last - state.chip[r.chip].first
        for r in stats.failures
        if r.back_s == np.inf
    )
    np.testing.assert_allclose(
        stats.instance_link_bytes.sum(), stats.chip_link_bytes.sum(), rtol=1e-3
    )


@pytest.mark.parametrize("system", tiered(SYSTEMS, "turns"))
def test_compiled_equals_interpreted(system: str) -> None:
    made = setup(*MODELS, superchips=3, **SYSTEMS[system])
    prepared = prepare(failing(made, mtbf_hours=20.0 / 3600.0, repair_s=5.0))
    block = random_requests(100, len(MODELS), 5.0, seed=4)
    _, stats, _ = in_both_forms(prepared, block)
    assert len(stats.failures) > 2


def test_nothing_changes_where_nothing_fails() -> None:
    made = setup(*MODELS, superchips=2)
    block = random_requests(100, len(MODELS), 5.0, seed=5)
    expected, _, _ = simulate(made, block)
    got, stats, _ = simulate(failing(made, **lost((1e6, 0, 1.0))), block)
    assert got.tobytes() == expected.tobytes()
    assert stats.failures == ()


def test_a_request_keeps_what_it_was_answered_and_goes_on_elsewhere() -> None:
    made = setup("llama-3-8b", mig="1x96gb", superchips=2)
    block = requests([0.0], prompt=500, output=400)
    (alone,), _, _ = simulate(made, block)
    at_s = 0.5 * float(alone.first_token_s + alone.finished_s)
    (record,), stats, simulation = simulate(failing(made, **lost((at_s, 0, 1e4))), block)
    assert record.first_token_s == alone.first_token_s
    assert record.finished_s > alone.finished_s
    assert record.slice != alone.slice
    # The new chip computes the prompt and what was answered, about half, anew.
    again = int(stats.prefill_tokens.sum()) - 500
    assert 500 + 190 <= again <= 500 + 210
    assert not simulation.state.device.kv_bytes.any()


def test_requests_fail_while_no_chip_is_there_and_are_served_after() -> None:
    made = failing(setup("llama-3-8b", mig="1x96gb"), **lost((10.0, 0, 20.0)))
    records, stats, _ = simulate(made, requests([0.0, 15.0, 29.9, 30.0, 40.0]))
    assert records.failure.tolist() == [FAIL_NONE, FAIL_DEVICE, FAIL_DEVICE, FAIL_NONE, FAIL_NONE]
    assert [(r.lost_s, r.back_s) for r in stats.failures] == [(10.0, 30.0)]
    assert stats.since_s.tolist() == [20.0]  # in service all but 20 s


def test_a_shard_sees_the_failures_of_its_own_chips() -> None:
    made = replace(setup(*MODELS, superchips=3, starts_active=True), cells=3)
    prepared = prepare(failing(made, mtbf_hours=30.0 / 3600.0, repair_s=4.0))
    block = random_requests(250, len(MODELS), 6.0, seed=3)
    workload = Workload(models=MODELS, source=lambda: iter([block]))
    whole, stats, _ = run(prepared, workload.blocks())
    shards = split(prepared, workload, shards=2, requests=250, part_rows=10**9)
    runs = [
        run(prepared, of_shard(workload, shards, k), s.models.tolist())
        for k, s in enumerate(shards)
    ]
    records = np.concatenate([r for r, _, _ in runs])
    assert np.sort(records, order="id").tobytes() == np.sort(whole, order="id").tobytes()
    together = merged_stats([s for _, s, _ in runs])
    ended_s = min(s.end_s for _, s, _ in runs)

    def early(rows: Any) -> list[tuple[float, int]]:
        return sorted((r.lost_s, r.chip) for r in rows if r.lost_s < ended_s)

    assert len(early(stats.failures)) > 2
    assert early(together.failures) == early(stats.failures)


def test_chips_of_a_host_fail_together_and_its_memory_is_empty_after() -> None:
    made = setup(*MODELS, superchips=4)
    made = failing(made, host_chips=2, **lost((10.0, 1, 20.0)))
    block = requests(np.arange(0.0, 60.0, 0.5), np.arange(120) % len(MODELS), 100, 50)
    records, stats, simulation = in_both_forms(made, block)
    assert [(r.chip, r.lost_s, r.back_s) for r in stats.failures] == [
        (0, 10.0, 30.0), (1, 10.0, 30.0),
    ]  # fmt: skip
    assert records.id.tolist() == list(range(120))
    assert (records.failure == FAIL_NONE).all()
    while_lost = (records.arrival_s > 10.0) & (records.arrival_s < 30.0)
    assert (records.chip[while_lost] >= 2).all()
    state, fleet = simulation.state, simulation.prepared.fleet
    held = np.bincount(
        fleet.home_chip, fleet.weight_bytes[fleet.home_model] * (state.hold.state == HELD), 4
    )
    np.testing.assert_array_equal(state.chip.free_bytes, state.chip.host_bytes - held)
    assert held[0] < held[2]


def test_a_model_of_a_lost_host_is_read_from_disk_again() -> None:
    made = setup("llama-3-8b", mig="1x96gb")
    block = requests([0.0, 40.0])
    with_memory, _, _ = simulate(failing(made, **lost((10.0, 0, 20.0))), block)
    without, stats, _ = simulate(failing(made, host_chips=1, **lost((10.0, 0, 20.0))), block)
    assert stats.cold_starts == 1
    assert without.first_token_s[0] == with_memory.first_token_s[0]
    read_s = 16.06e9 / (made.platform.host.disk_gbps * 1e9)
    assert without.first_token_s[1] > with_memory.first_token_s[1] + 0.9 * read_s


def test_hosts_have_chips_of_one_part_and_draw_by_their_own_number() -> None:
    made = setup(*MODELS, superchips=3, beside=[("gh200", "1x96gb", 2)])
    made = failing(made, host_chips=2, mtbf_hours=10.0, repair_s=7200.0)
    assert made.unit_of.tolist() == [0, 0, 1, 2, 2]
    prepared = prepare(made)
    whole, part = (
        FailureSchedule(prepared, np.arange(5)),
        FailureSchedule(prepared, np.arange(1, 3)),
    )
    for schedule in (whole, part):
        while schedule.next_s < 3600.0 * 200:
            schedule.next_event()
    mine = [r for r in whole.rows if r.chip in (1, 2)]
    assert mine == list(part.rows)
    assert {r.lost_s for r in whole.rows if r.chip == 3} == {
        r.lost_s for r in whole.rows if r.chip == 4
    }


def test_chips_are_there_as_long_as_the_rates_say() -> None:
    prepared = prepare(failing(setup(superchips=40), mtbf_hours=10.0, repair_s=7200.0))
    schedule = FailureSchedule(prepared, np.arange(40))
    while schedule.next_s < 3600.0 * 2000:
        schedule.next_event()
    rows = [r for r in schedule.rows if r.back_s < np.inf]
    assert abs(np.mean([r.back_s - r.lost_s for r in rows]) / 7200.0 - 1.0) < 0.05
    assert abs(len(rows) / (40 * 2000 / 12.0) - 1.0) < 0.05


def test_a_chosen_failure_of_a_lost_chip_changes_nothing() -> None:
    prepared = prepare(failing(setup(), **lost((1.0, 0, 10.0), (5.0, 0, 100.0))))
    schedule = FailureSchedule(prepared, np.arange(1))
    seen = []
    while schedule.next_s < np.inf:
        seen.append((schedule.next_s, schedule.next_event()))
    assert seen == [(1.0, ([0], False)), (5.0, None), (11.0, ([0], True))]
    assert [(r.lost_s, r.back_s) for r in schedule.rows] == [(1.0, 11.0)]
    made = failing(setup("llama-3-8b", mig="1x96gb"), **lost((1.0, 0, 10.0), (5.0, 0, 100.0)))
    records, _, _ = simulate(made, requests([2.0, 6.0, 12.0]))  # at 6 s it is still away
    assert records.failure.tolist() == [FAIL_DEVICE, FAIL_DEVICE, FAIL_NONE]


def test_chosen_failures_leave_the_rate_of_drawn_ones() -> None:
    made = failing(setup(superchips=40), mtbf_hours=10.0, repair_s=7200.0)
    events = tuple(
        Failure(at_s=3600.0 * t, chip=c, repair_s=60.0) for c in range(40) for t in range(1, 200)
    )
    both = replace(made, failures=replace(made.failures, events=events))
    schedule = FailureSchedule(prepare(both), np.arange(40))
    while schedule.next_s < 3600.0 * 200:
        schedule.next_event()
    drawn = [r for r in schedule.rows if r.lost_s % 3600.0 > 0.0]
    assert abs(len(drawn) / (40 * 200 / 12.0) - 1.0) < 0.15


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"mtbf_hours": 0.0}, r"failures\.mtbf_hours=0\.0"),
        ({"mtbf_hours": 5.0, "host_chips": -1}, r"failures\.host_chips=-1"),
        ({"mtbf_hours": 5.0, "repair_s": 0.0}, r"failures\.repair_s=0\.0"),
        (lost((-1.0, 0, 1.0)), r"failures\.events\[0\]\.at_s=-1\.0"),
        (lost((1.0, 0, np.inf)), r"failures\.events\[0\]\.repair_s=inf"),
        (
            lost((1.0, 0, 1.0), (1.0, 3, 1.0)),
            r"failures\.events\[1\]\.chip=3: expected from 0 to 2",
        ),
    ],
)
def test_what_cannot_be_is_refused(how: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        failing(setup(superchips=3), **how)


def test_systems_that_cannot_lose_chips_say_so() -> None:
    with pytest.raises(SettingError, match=r"failures='on': expected none with system\.one_each"):
        failing(setup(one_each=True), mtbf_hours=1.0)
