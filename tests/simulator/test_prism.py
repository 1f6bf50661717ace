"""Engines with all their weights in one HBM, whose KV caches share what weights leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.models import kv_bytes_per_token, load_spec, weight_bytes
from c2c.policies import FirstIdle, Fixed, KvPressure, LeastLoaded, Resident, SlackFirst, Static
from c2c.serving import ServingSetup, activation_bytes, prepare
from c2c.serving.batches.schedulers.token_budget import VllmV1
from tests.simulator.worlds import in_both_forms, random_requests, requests, setup, simulate
from tests.tiers import tiered

COMMON: dict[str, Any] = {"chunk": Fixed(512), "alpha": Static(0.0), "check_slo": False}
OWN = COMMON | {"load": Resident(start_s=0.0), "place": FirstIdle()}
SHARED = OWN | {
    "place": KvPressure(), "turn": SlackFirst(), "batch": VllmV1(512), "engines__residents": 4,
}  # fmt: skip
THREE = ("llama-3-8b", "llama-3-3b", "llama-3-8b")


def shared(*models: str, **changes: Any) -> ServingSetup:
    return setup(*models, mig="1x96gb", **(SHARED | changes))


def test_a_model_alone_is_as_on_a_gpu_of_its_own() -> None:
    block = random_requests(30, 1, 4.0, 0)
    ours, _, _ = simulate(shared("llama-3-8b"), block)
    theirs, _, _ = simulate(
        setup("llama-3-8b", mig="1x96gb", **(OWN | {"batch": VllmV1(512)})), block
    )
    for field in ("first_token_s", "finished_s", "link_bytes", "hbm_bytes", "chunks"):
        np.testing.assert_array_equal(ours[field], theirs[field], err_msg=field)


def test_room_is_what_all_weights_leave() -> None:
    _, stats, simulation = simulate(
        shared(*THREE), requests([0.0, 1.0, 2.0], model=[0, 1, 2], prompt=10, output=20)
    )
    assert (stats.switches, stats.evictions) == (3, 0)
    specs, made = [load_spec(name) for name in THREE], prepare(shared(*THREE))
    chunk = max(512, *made.setup.system.profile.chunks)
    room = made.kinds[0].slice.hbm_bytes - made.setup.system.hbm_reserve_bytes
    room -= max(activation_bytes(spec, chunk) for spec in specs) + 2 * 0.5e9
    room -= sum(float(weight_bytes(spec)) for spec in specs)
    token = max(float(kv_bytes_per_token(spec)) for spec in specs)
    assert float(simulation.state.device.capacity_bytes[0]) == pytest.approx(room, abs=2 * token)


def test_idle_weights_give_way_for_kv_caches_and_come_back() -> None:
    # 96 GB hold 16 + 6 + 16 GB of weights and, without the idle two, 22 GB more of KV caches.
    prompts = [600] * 700
    block = requests(
        [0.0, 1.0, *np.linspace(10.0, 11.0, 700), 400.0], model=[1, 2, *[0] * 700, 1],
        prompt=[10, 10, *prompts, 10], output=[5, 5, *[300] * 700, 5],
    )  # fmt: skip
    what = shared(*THREE, engines__bytes=20e9, max_batch=700)
    records, stats, simulation = simulate(what, block, compiled=True)
    assert stats.finished == len(block)
    # The model unused for longest, and its return.
    assert (stats.evictions, stats.switches) == (1, 4)
    assert records.first_token_s[-1] - 400.0 > weight_bytes(load_spec("llama-3-3b")) / 450e9
    assert simulation.state.device.kv_bytes.tolist() == [0.0]


@pytest.mark.parametrize("engine_bytes", tiered([0.5e9, 25e9], 25e9))
def test_both_forms_agree_and_nothing_is_lost(engine_bytes: float) -> None:
    what = prepare(shared(*THREE, "llama-3-3b", engines__bytes=engine_bytes))
    block = random_requests(60, 4, 20.0, 5)
    _, stats, simulation = in_both_forms(what, block)
    assert (stats.finished, stats.failed) == (60, 0)
    assert simulation.state.device.kv_bytes.tolist() == [0.0]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"place": LeastLoaded()}, "system.place"),
        ({"engines__kv_host_bytes": 1e9}, "system.engines.kv_host_bytes"),
        ({"disaggregation__prompt_share": 0.5}, "system.disaggregation.prompt_share"),
    ],
)
def test_what_shared_weights_exclude(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingError, match=rf"^{field}="):
        prepare(shared(*THREE, superchips=2, **changes))
