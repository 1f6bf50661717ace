"""KV caches of engines that do not run, in host memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.policies import Fixed, LeastLoaded, RoundRobin, Static, Swapped
from c2c.serving import ServingSetup, prepare
from tests.simulator.worlds import random_requests, requests, setup, simulate

SWAPPING: dict[str, Any] = {
    "mig": "1x96gb", "engines__residents": 3, "turn": RoundRobin(), "place": LeastLoaded(),
    "chunk": Fixed(512), "alpha": Static(0.0), "load": Swapped(start_s=0.0, ahead=False),
    "check_slo": False,
}  # fmt: skip
PROMPT, OUTPUT = 1000, 60
NEED = PROMPT + OUTPUT


def short_of_room(caches: float, **system: Any) -> ServingSetup:
    """Return a GPU whose HBM has room for so many requests' KV caches of one of three models."""
    models = ("llama-3-8b",) * 3
    roomy = setup(*models, **SWAPPING)
    costs = prepare(roomy).fleet.costs
    room = float(prepare(roomy).fleet.kv_capacity[0, 0] * costs.kv_bytes[0])
    # all three engines' own memory, and what is not to be used
    spare = room - caches * NEED * float(costs.kv_bytes[0]) - 2 * roomy.system.engines.bytes
    reserve = roomy.system.hbm_reserve_bytes + spare
    return setup(*models, **SWAPPING | {"hbm_reserve_bytes": reserve} | system)


def test_more_engines_decode_in_turn_than_hbm_has_room_for() -> None:
    block = requests([0.0, 0.0, 0.0], [0, 1, 2], prompt=PROMPT, output=OUTPUT)
    waiting, stats, _ = simulate(short_of_room(1.5), block)
    assert stats.kv_in_bytes == stats.kv_out_bytes == 0.0
    assert waiting.started_s[2] >= waiting.finished_s[:2].min()
    what = prepare(short_of_room(1.5, engines__kv_host_bytes=10e9))
    parked, stats, simulation = simulate(what, block)
    assert parked.started_s.max() < parked.finished_s.min()
    # Of three caches one and a half are in HBM: each turn brings what is missing.
    one = NEED * float(what.fleet.costs.kv_bytes[0])
    assert stats.kv_in_bytes > 10 * one
    assert stats.kv_in_bytes == pytest.approx(stats.kv_out_bytes, rel=0.05)
    assert simulation.state.chip.kv_room_bytes[0] == 10e9
    turns = stats.chip_link_bytes[0] - stats.kv_in_bytes
    weights = float(what.fleet.weight_bytes[0])
    assert turns / weights == pytest.approx(round(turns / weights), abs=1e-6)


def test_a_turn_takes_the_time_of_what_comes_back() -> None:
    """Half the link, twice the time; the link's other way is for what goes."""
    block = requests([0.0, 0.0, 0.0], [0, 1, 2], prompt=PROMPT, output=OUTPUT)

    def turned_s(kv_host_bytes: float, caches: float, link: float) -> tuple[float, float]:
        what = short_of_room(caches, engines__kv_host_bytes=kv_host_bytes)
        slow = replace(what.platform.link, measured_gbps=375.0 * link, datasheet_gbps=450.0 * link)
        records, stats, simulation = simulate(
            replace(what, platform=replace(what.platform, link=slow)), block
        )
        rate = float(simulation.machine.link_cap[0])
        copies_s = (stats.chip_link_bytes[0] - stats.kv_in_bytes) / rate
        return records.finished_s.max() - copies_s, stats.kv_in_bytes / rate

    for link in (0.02, 0.01):
        computed_s, nothing = turned_s(10e9, 4.0, link)
        assert nothing == 0.0
        with_moves_s, in_s = turned_s(10e9, 1.5, link)
        assert with_moves_s - computed_s == pytest.approx(in_s, rel=0.1)
        assert in_s > 1.0


def test_room_in_hbm_parks_nothing() -> None:
    block = random_requests(40, 3, 3.0, 5)
    without, _, _ = simulate(setup(*("llama-3-8b",) * 3, **SWAPPING), block)
    with_room, stats, _ = simulate(
        setup(*("llama-3-8b",) * 3, **SWAPPING | {"engines__kv_host_bytes": 1e9}), block
    )
    assert stats.kv_out_bytes == 0.0
    assert without.tobytes() == with_room.tobytes()


def test_weights_have_what_kv_caches_leave_of_host_memory() -> None:
    what = setup("llama-3-8b", "llama-3-8b", **SWAPPING | {"engines__kv_host_bytes": 50e9})
    state = prepare(what).new_serving()
    assert state.chip.host_bytes[0] == what.platform.host.memory_bytes - 50e9
    assert state.chip.kv_room_bytes[0] == 50e9


@pytest.mark.parametrize(
    "changes",
    [
        {"engines__kv_host_bytes": -1.0},
        {"engines__kv_host_bytes": 1e9, "engines__residents": 1},
        {"engines__kv_host_bytes": np.inf},
    ],
)
def test_room_that_cannot_be_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"system\.engines\.kv_host_bytes"):
        prepare(setup("llama-3-8b", **SWAPPING | changes))
