"""Prompts on one device, decodes on another: what is handed over, and what it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.policies import AtOutstanding, Fixed, LeastLoaded, Quota, Static, Swapped, WhereWorkIs
from c2c.serving import ServingSetup, prepare
from c2c.serving.tables.table_growth import grow_requests
from tests.simulator.worlds import random_requests, requests, setup, simulate
from tests.tiers import tiered

APART: dict[str, Any] = {
    "mig": "1x96gb", "superchips": 2, "engines__residents": 4, "route": WhereWorkIs(),
    "scale": AtOutstanding(8), "place": LeastLoaded(turns=1.0), "turn": Quota(),
    "chunk": Fixed(512), "alpha": Static(0.0), "load": Swapped(start_s=0.0),
    "engines__kv_host_bytes": 10e9, "disaggregation__prompt_share": 0.5, "check_slo": False,
}  # fmt: skip
TWO = ("llama-3-8b", "llama-3-3b")


def apart(*models: str, **system: Any) -> ServingSetup:
    return setup(*(models or TWO), **APART | system)


def test_a_sender_reads_in_its_hbm_what_it_sends() -> None:
    what = prepare(apart(load=Swapped(start_s=0.0, ahead=False)))
    one, two = (simulate(what, requests([0.0], prompt=1000, output=n))[1] for n in (1, 2))
    more_bytes = two.instance_hbm_bytes[0] - one.instance_hbm_bytes[0]
    assert two.kv_out_bytes > 0.0
    assert more_bytes == pytest.approx(two.kv_out_bytes)


def test_every_byte_of_a_kv_cache_leaves_one_device_and_comes_to_another() -> None:
    what = prepare(apart(load=Swapped(start_s=0.0, ahead=False)))
    assert what.fleet.role.tolist() == [1, 2]
    block = random_requests(30, 2, 4.0, 3)
    records, stats, simulation = simulate(what, block)
    goes = block.output_tokens > 1  # a prompt whose only token it was is served
    token = what.fleet.costs.kv_bytes[what.fleet.deployment.arch[block.model]]
    moved = float(((block.prompt_tokens + 1) * token)[goes].sum())
    assert stats.handed == goes.sum() > 20
    assert stats.kv_out_bytes == stats.kv_in_bytes == moved
    assert stats.prefill_tokens.tolist() == [block.prompt_tokens.sum(), 0]
    assert stats.decode_tokens.tolist() == [0, (block.output_tokens - 1).sum()]
    assert (records.slice == np.where(goes, 1, 0)).all()
    assert simulation.state.chip.kv_room_bytes.tolist() == [10e9, 10e9]
    # what came over the link is charged to those who came, as weights to who used them
    loads = simulation.machine.load_link_bytes.sum() * 2  # both models on both devices
    assert records.link_bytes.sum() + loads == pytest.approx(stats.instance_link_bytes.sum())


def test_where_not_all_engines_fit_those_with_work_are_what_counts() -> None:
    what = prepare(apart(engines__bytes=25e9))
    assert what.fleet.sure_bytes[0] < 0.0
    block = random_requests(30, 2, 4.0, 3)
    _, stats, simulation = simulate(what, block)
    assert stats.finished == 30
    assert stats.handed > 20
    assert simulation.state.chip.kv_room_bytes.tolist() == [10e9, 10e9]
    none = prepare(apart(engines__bytes=90e9))  # a second engine would leave nothing
    _, stats, _ = simulate(none, requests([0.0, 0.0], [0, 1], prompt=100, output=50))
    assert (stats.finished, stats.handed) == (2, 1)


def _alone(**system: Any) -> Any:
    # The second of two requests of one model, long after the first: both engines are active.
    block = requests([0.0, 100.0], [0, 0], prompt=2000, output=20)
    (_, record), stats, simulation = simulate(apart("llama-3-8b", **system), block)
    return record, stats, simulation


def test_a_cache_takes_its_bytes_over_the_slowest_of_its_way_and_ttft_knows_nothing_of_it() -> None:
    size = 2001 * float(prepare(apart("llama-3-8b")).fleet.costs.kv_bytes[0])
    both, _, _ = _alone(disaggregation__prompt_share=0.0)
    took_s = both.finished_s - both.first_token_s
    for gbps in (50.0, 25.0, 0.5):
        found, _, _ = _alone(disaggregation__hand_over_gbps=gbps)
        assert found.first_token_s == both.first_token_s
        lead_s = found.finished_s - found.first_token_s - took_s
        assert lead_s == pytest.approx(size / (gbps * 1e9), rel=1e-6)
    record, _, simulation = _alone(
        disaggregation__hand_over_gbps=1e6
    )  # then the link is the slowest
    lead_s = record.finished_s - record.first_token_s - took_s
    assert lead_s == pytest.approx(size / float(simulation.machine.link_cap[0]), rel=1e-6)


def test_caches_leave_a_chip_one_after_another() -> None:
    """The first of three prompts ends alone; its cache still leaves when those of the others do."""
    block = requests([0.0, 100.0, 100.0, 100.0], [0] * 4, prompt=[9, 160, 160, 160], output=2)
    slow = apart("llama-3-8b", disaggregation__hand_over_gbps=0.1)
    records, _, simulation = simulate(slow, block)
    one_s = 161 * float(prepare(slow).fleet.costs.kv_bytes[0]) / 0.1e9
    first_s = records.first_token_s[1]
    assert records.first_token_s[1:].max() < first_s + one_s
    assert simulation.world.link.sent_s[0] == pytest.approx(first_s + 3 * one_s)
    assert records.finished_s.max() >= first_s + 3 * one_s


def test_prompts_of_a_model_are_served_as_a_group() -> None:
    block = requests([0.0] + [0.001] * 9, [0] + [0, 1] * 4 + [1], prompt=300, output=5)
    records, _, _ = simulate(apart(place=LeastLoaded()), block)
    by_time = records[np.argsort(records.first_token_s, kind="stable")]
    assert by_time.model.tolist() == [0] * 5 + [1] * 5


@pytest.mark.parametrize("lacks", tiered(["host memory", "places"]))
def test_what_no_other_device_takes_decodes_where_it_is(lacks: str) -> None:
    block = random_requests(24, 2, 8.0, 5)
    short = {"engines__kv_host_bytes": 1e6} if lacks == "host memory" else {"max_batch": 1}
    records, stats, _ = simulate(apart(**short), block)
    assert not records.failure.any()
    assert stats.decode_tokens[0] > 0
    assert (stats.handed == 0) == (lacks == "host memory")


def test_a_model_has_homes_of_both_kinds() -> None:
    made = apart(*["llama-3-8b"] * 8, superchips=4, disaggregation__prompt_share=0.25)
    host = replace(made.platform.host, memory_bytes=int(60e9))  # three models a chip
    what = prepare(replace(made, platform=replace(made.platform, host=host)))
    assert what.fleet.role.tolist() == [1, 2, 2, 2]
    fleet = what.fleet
    for m in range(8):
        chips = fleet.home_chip[fleet.home_first[m] : fleet.home_first[m + 1]]
        assert set(fleet.role[chips]) == {1, 2}


def test_slices_of_one_chip_share_the_roles_and_a_single_device_has_both() -> None:
    sliced = {"mig": "4x24gb", "superchips": 2}
    assert prepare(apart("llama-3-3b", **sliced)).fleet.role.tolist() == [1, 1, 2, 2] * 2
    assert prepare(apart("llama-3-3b", superchips=1)).fleet.role.tolist() == [0]


def test_cells_and_roles_do_not_go_together() -> None:
    with pytest.raises(SettingError, match="cells"):
        prepare(replace(apart(), cells=2))


def test_there_is_room_for_an_event_that_hands_over_every_request() -> None:
    """A slice for prompts has waited for room; the list of actions was too short for it."""
    state = prepare(apart()).new_serving(slots=1000)
    assert len(state.actions) > len(state.request)
    grown = grow_requests(state, 5000)
    assert len(grown.actions) > len(grown.request) == 6000
