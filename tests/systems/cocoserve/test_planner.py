"""Plans of copies and of relief, against values by hand and brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.systems.cocoserve.exact import exact
from c2c.systems.cocoserve.operations import operations_between
from c2c.systems.cocoserve.placement import Placement
from c2c.systems.cocoserve.planner import by_continuity, by_runs, in_order, room_of, scale_up
from c2c.systems.cocoserve.speedup import Estimate

EIGHT = Placement.unscaled(8)


@pytest.mark.parametrize(
    ("candidates", "counts", "speedup"),
    [("here", (3, 3, 2, 1, 1, 1, 1, 1), 96 / 85), ("anywhere", (2, 2, 2, 2, 2, 1, 1, 1), 32 / 27)],
)
def test_algorithm_1(candidates: str, counts: tuple[int, ...], speedup: float) -> None:
    half = Estimate.printed(0.5)
    made = scale_up(EIGHT, {1: 3, 2: 2}, half, candidates=candidates)  # type: ignore[arg-type]
    assert made.counts == counts
    assert half.of(made) == pytest.approx(speedup)
    assert scale_up(EIGHT, {1: 3, 2: 2}, Estimate.printed(1.5), candidates="here") == EIGHT


def test_algorithm_1_stacks_copies_where_candidates_lack_one_here() -> None:
    forty, bound = Placement.unscaled(40), Estimate.printed(0.0)
    stacked = scale_up(forty, {1: 20, 2: 20, 3: 20}, bound)
    assert bound.of(stacked) == pytest.approx(1.6)
    spread = scale_up(forty, {1: 20, 2: 20}, bound, candidates="anywhere")
    assert bound.of(by_runs(forty, {1: 20, 2: 20, 3: 20}, bound)) == pytest.approx(2.4)
    assert bound.of(spread) == pytest.approx(2.0)


def test_continuity() -> None:
    held = [i in (3, 4, 5, 9) for i in range(12)]
    candidates = [i for i in range(12) if not held[i]]
    assert by_continuity(held, candidates)[:4] == [2, 6, 8, 10]
    again = []
    for _ in range(4):
        again.append(by_continuity(held, [i for i in range(12) if not held[i]])[0])
        held[again[-1]] = True
    assert again == [2, 1, 0, 6]


@pytest.mark.parametrize("sort_again", [False, True])
def test_algorithm_1_takes_candidates_by_continuity(sort_again: bool) -> None:
    start = Placement.unscaled(12).replicated([3, 4, 5, 9], 1)
    made = scale_up(start, {1: 4}, Estimate.printed(0.0), sort_again=sort_again)
    new = {i for i in range(12) if made.holds(i, 1) and not start.holds(i, 1)}
    assert new == ({2, 1, 0, 6} if sort_again else {2, 6, 8, 10})


@pytest.mark.parametrize(
    ("share", "singly", "runs"), [(1 / 32, 1, 16 / 11), (1 / 100, 400 / 291, 400 / 241)]
)
def test_runs_beat_single_layers(share: float, singly: float, runs: float) -> None:
    counted, room = Estimate.counted(share), {1: 4, 2: 3}
    assert counted.of(scale_up(EIGHT, room, counted)) == pytest.approx(singly)
    made = by_runs(EIGHT, room, counted)
    assert counted.of(made) == pytest.approx(runs)
    assert [i for i in range(8) if made.holds(i, 1)] == [0, 1, 2, 3]
    assert [i for i in range(8) if made.holds(i, 2)] == [4, 5, 6]


def test_thirty_layers_are_added_by_runs_and_none_singly() -> None:
    counted, forty = Estimate.counted(1 / 80), Placement.unscaled(40)
    assert scale_up(forty, {1: 30}, counted) == forty
    assert counted.of(by_runs(forty, {1: 30}, counted)) == pytest.approx(20 / 13)


def least_costs(layers: int, devices: int, estimate: Estimate) -> np.ndarray:
    """Return the least cost by the room of each device, of all choices of layers."""
    sets = np.array(list(product((0, 1), repeat=layers)))
    runs = (np.diff(np.pad(sets, ((0, 0), (1, 0))), axis=1) == 1).sum(1)
    held = np.zeros((1,) * devices + (layers,), dtype=int)
    begun = np.zeros((1,) * devices, dtype=int)
    for k in range(devices):
        shape = [1] * devices
        shape[k] = len(sets)
        held = held + sets.reshape(*shape, layers)
        begun = begun + runs.reshape(shape)
    costs = estimate.cost((1.0 / (1 + held)).mean(-1), 0) + estimate.per_transition * 2 * begun
    least = np.full((layers + 1,) * devices, np.inf)
    sizes = sets.sum(1)
    np.minimum.at(least, tuple(np.meshgrid(*[sizes] * devices, indexing="ij")), costs)
    for k in range(devices):
        least = np.minimum.accumulate(least, axis=k)
    return least


@pytest.mark.parametrize("layers", range(1, 9))
def test_runs_and_the_programme_are_best_on_two_devices(layers: int) -> None:
    start = Placement.unscaled(layers)
    for share in (0.0, 1 / 200, 1 / 60, 1 / 32, 1 / 20, 1 / 9):
        counted = Estimate.counted(share)
        least = least_costs(layers, 2, counted)
        for room in product(range(layers + 1), repeat=2):
            given = dict(enumerate(room, 1))
            best = pytest.approx(1 / least[room])
            assert counted.of(by_runs(start, given, counted)) == best
            if share in (1 / 60, 1 / 20):
                assert counted.of(exact(start, given, counted)) == best


@pytest.mark.parametrize("share", [0.0, 1 / 150, 1 / 40])
def test_the_programme_is_best_on_three_devices(share: float) -> None:
    counted, start = Estimate.counted(share), Placement.unscaled(5)
    least = least_costs(5, 3, counted)
    for room in product(range(6), repeat=3):
        made = exact(start, dict(enumerate(room, 1)), counted)
        assert counted.of(made) == pytest.approx(1 / least[room]), room


def test_the_programme_beats_runs_on_three_devices() -> None:
    counted, room = Estimate.counted(1 / 1000), {1: 55, 2: 50, 3: 45}
    start = Placement.unscaled(80)
    assert counted.of(exact(start, room, counted)) > 1.03 * counted.of(
        by_runs(start, room, counted)
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_plans_keep_within_room_and_never_lose(data: st.DataObject) -> None:
    """Any placement may be the start, migrated originals included."""
    n = data.draw(st.integers(1, 9))
    held = st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=n, max_size=n)
    start = Placement(tuple(tuple(sorted(each)) for each in data.draw(held)))
    room = data.draw(st.dictionaries(st.integers(1, 3), st.integers(0, 9)))
    counted = Estimate.counted(data.draw(st.sampled_from([0.0, 0.01, 0.05, 0.2])))
    before = counted.of(start)
    found = {
        "singly": scale_up(start, room, counted),
        "by placement": scale_up(start, room, counted.of),
        "again": scale_up(start, room, counted, sort_again=True, candidates="anywhere"),
        "runs": by_runs(start, room, counted),
        "exact": exact(start, room, counted),
    }
    for made in found.values():
        assert counted.of(made) >= before * (1 - 1e-9)
        assert all(set(a) <= set(b) for a, b in zip(start.copies, made.copies, strict=True))
        for device in made.devices:
            added = sum(made.holds(i, device) and not start.holds(i, device) for i in range(n))
            assert added <= room.get(device, 0)
        assert {o.kind for o in operations_between(start, made)} <= {"replicate"}
    assert found["by placement"] == found["singly"]
    best = counted.of(found["exact"])
    assert all(counted.of(made) <= best * (1 + 1e-9) for made in found.values())


def test_order_of_devices_and_room() -> None:
    assert in_order({1: 2, 2: 5, 3: 5}, "most_room") == [2, 3, 1]
    assert in_order({3: 2, 1: 5}, "index") == [1, 3]
    free, idle = {1: 25.0, 2: 99.0, 3: -4.0}, {1: 0.9, 2: 0.25, 3: 1.0}
    found = {
        way: room_of(free, idle, layer_bytes=10.0, layers=8, available=way)  # type: ignore[arg-type]
        for way in ("bytes", "work", "both")
    }
    assert found == {
        "bytes": {1: 2, 2: 9, 3: 0}, "work": {1: 7, 2: 2, 3: 8}, "both": {1: 2, 2: 2, 3: 0},
    }  # fmt: skip


def test_wrong_values_are_named() -> None:
    counted = Estimate.counted(0.1)
    one = EIGHT.replicated([1], 1)
    for field, call in {
        "candidates": lambda: scale_up(EIGHT, {1: 1}, counted, candidates="x"),  # type: ignore[arg-type]
        "order": lambda: by_runs(EIGHT, {1: 1}, counted, order="x"),  # type: ignore[arg-type]
        "available": lambda: room_of({}, {}, layer_bytes=1, layers=1, available="x"),  # type: ignore[arg-type]
        "room": lambda: exact(EIGHT, {1: 1, 2: 1, 3: 1, 4: 1}, counted),
        "layers": lambda: one.replicated([0, 1], 1),
        "copies": lambda: Placement(()),
        "copies[0]": lambda: Placement(((0, 0),)),
    }.items():
        with pytest.raises(SettingError) as refused:
            call()
        assert refused.value.field == field
    for call in (
        lambda: one.evicted([1, 0], 0),  # the last copy of layer 0
        lambda: one.evicted([0], 1),
        lambda: one.migrated([1], 0, 1),
        lambda: one.migrated([8], 0, 1),
        lambda: one.replicated([2, 2], 1),
    ):
        with pytest.raises(SettingError, match="layers"):
            call()
