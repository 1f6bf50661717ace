"""Reserved memory of models whose layers have windows or a state, by hand and from records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.models import Deployment, ModelSpec, from_hf_config, kv_bytes, load_spec
from c2c.policies import Fixed, Static
from c2c.serving import Prepared, ServingSetup, prepare
from c2c.serving.tables.costs import held_places
from c2c.workloads import RequestBlock
from tests.models.published import CONFIGS
from tests.simulator.worlds import in_both_forms, requests, setup, simulate, with_settings


def spec_of(name: str) -> ModelSpec:
    return from_hf_config(CONFIGS[name], name) if name in CONFIGS else load_spec(name)


def serving(spec: ModelSpec, **system: Any) -> ServingSetup:
    made = setup(**{"mig": "1x96gb", "check_slo": False} | system)
    one = Deployment(name="m", spec=spec, ttft_slo_s=1.0, tpot_slo_s=1.0)
    return replace(made, deployments=(one,))


def reserved(prepared: Prepared, tokens: int) -> float:
    return float(held_places(prepared.fleet.costs, 0, tokens) * prepared.fleet.costs.kv_bytes[0])


# 12 + 12 layers, 8 heads of 64; 5 + 29, 4 heads of 256; 12 layers, 2 heads of 256, and a state
BY_HAND = {
    "gpt-oss-20b": (128, lambda t: (12 * t + 12 * min(t, 128)) * 2 * 8 * 64 * 2),
    "gemma3_4b": (1024, lambda t: (5 * t + 29 * min(t, 1024)) * 2 * 4 * 256 * 2),
    "qwen3_next_80b": (4096, lambda t: 12 * t * 2 * 2 * 256 * 2 + 77_266_944),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_request_reserves_what_was_counted_by_hand(name: str) -> None:
    window, by_hand = BY_HAND[name]
    prepared = prepare(serving(spec_of(name)))
    for tokens in (1, window - 1, window, window + 1, 100_000):
        assert reserved(prepared, tokens) == by_hand(tokens) == kv_bytes(spec_of(name), tokens)


@pytest.mark.parametrize("name", BY_HAND)
def test_the_longest_request_fits_and_one_token_more_does_not(name: str) -> None:
    for is_counted in (True, False):
        fleet = (made := prepare(serving(spec_of(name), engines__kv_windows=is_counted))).fleet
        longest, room = int(fleet.kv_capacity[0, 0]), float(fleet.kv_capacity_bytes[0, 0])
        assert reserved(made, longest) <= room < reserved(made, longest + 1)


def test_a_model_whose_layers_all_have_a_window_has_room_for_its_whole_context() -> None:
    spec = replace(load_spec("llama-3-3b"), sliding_window=64)
    prepared = prepare(serving(spec))
    assert prepared.fleet.kv_capacity[0, 0] >= spec.max_position
    assert reserved(prepared, 64) == reserved(prepared, 100_000) == kv_bytes(spec, 64)


@pytest.mark.parametrize("changes", [{"engines__kv_windows": False}, {"prefix_cache__hbm": True}])
def test_all_tokens_are_reserved_where_windows_are_not_counted(changes: dict[str, Any]) -> None:
    for name in ("gpt-oss-20b", "gemma3_4b"):
        spec, prepared = spec_of(name), prepare(serving(spec_of(name), **changes))
        full = replace(spec, partial_window=0, partial_window_layers=0, window_layers=())
        assert reserved(prepared, 100_000) == kv_bytes(full, 100_000)
        # attention reads what it sees all the same
        assert prepared.fleet.costs.reads[0].tolist()[2] == spec.partial_window


WINDOWS = st.fixed_dictionaries(
    {"windowed": st.integers(0, 28), "window": st.integers(1, 3000), "seed": st.integers(0, 2**31)}
)


def tight(windowed: int, window: int, *, counts: bool, tokens: int = 6000) -> Prepared:
    """A slice with room for about so many tokens, and a model with so many windowed layers."""
    spec = load_spec("llama-3-3b")
    if windowed:
        spec = replace(spec, partial_window=window, partial_window_layers=windowed,
                       window_layers=tuple(range(windowed)))  # fmt: skip
    made = serving(spec, mig="7x12gb", chunk=Fixed(tokens=256), alpha=Static())
    plain = prepare(replace(made, system=with_settings(made.system, engines__kv_windows=False)))
    beyond = plain.fleet.kv_capacity_bytes[0, 0] - tokens * int(
        kv_bytes(load_spec("llama-3-3b"), 1)
    )
    return prepare(
        replace(made, system=with_settings(made.system, hbm_reserve_bytes=float(beyond)
                + made.system.hbm_reserve_bytes, engines__kv_windows=counts))
    )  # fmt: skip


def burst(seed: int, n: int = 40) -> RequestBlock:
    g = np.random.default_rng(seed)
    return requests(
        np.sort(g.exponential(1.0, n)), 0, g.integers(1, 4000, n), g.integers(1, 120, n)
    )


def peak_bytes(records: Any, spec: ModelSpec) -> dict[int, float]:
    """The most memory of requests between their admission and their end, by slice."""
    served = records[records.failure == 0]
    own = kv_bytes(spec, served.prompt_tokens + served.output_tokens)
    peaks = {}
    for d in np.unique(served.slice):
        here = served.slice == d
        times = np.concatenate([served.admitted_s[here], served.finished_s[here]])
        change = np.concatenate([own[here], -own[here]])
        order = np.lexsort((change, times))  # ends before joins
        peaks[int(d)] = float(np.cumsum(change[order]).max())
    return peaks


@settings(max_examples=15, deadline=None)
@given(WINDOWS)
def test_memory_is_never_above_capacity(drawn: dict[str, int]) -> None:
    prepared = tight(drawn["windowed"], drawn["window"], counts=True)
    records, _, simulation = simulate(prepared, burst(drawn["seed"]), compiled=True)
    room = prepared.fleet.kv_capacity_bytes[0, 0]
    assert all(0 < peak <= room for peak in peak_bytes(records, prepared.architectures[0]).values())
    assert not simulation.state.device.kv_bytes.any()
    assert not simulation.state.instance.kv_used.any()


@settings(max_examples=15, deadline=None)
@given(WINDOWS)
def test_windows_admit_at_least_as_many_as_the_same_memory_without(drawn: dict[str, int]) -> None:
    g = np.random.default_rng(drawn["seed"])
    block = requests(np.zeros(30), 0, g.integers(1, 4000, 30), g.integers(1, 120, 30))
    joined, rooms = [], []
    for counts in (False, True):
        prepared = tight(drawn["windowed"], drawn["window"], counts=counts)
        records, _, _ = simulate(prepared, block, compiled=True)
        served = records[records.failure == 0]
        joined.append(int((served.admitted_s == served.admitted_s.min()).sum()))
        rooms.append(prepared.fleet.kv_capacity_bytes[0, 0])
        assert len(served) == len(block)
    assert rooms[0] == rooms[1]
    assert joined[0] <= joined[1]


def test_a_short_window_admits_many_more() -> None:
    block = requests(np.zeros(20), 0, 3900, 100)
    joined = []
    for counts in (False, True):
        records, _, _ = simulate(tight(27, 100, counts=counts), block, compiled=True)
        joined.append(int((records.admitted_s == records.admitted_s.min()).sum()))
    # 6,000 tokens in 28 layers: 4,000 in one and 100 in 27 are 6,700 of 168,000
    assert joined == [1, 20]


@pytest.mark.parametrize("name", ["partial", "all", "state"])
def test_interpreted_and_compiled_agree(name: str) -> None:
    if name == "state":
        prepared = prepare(serving(spec_of("qwen3_next_80b"), hbm_reserve_bytes=80e9))
    else:
        prepared = tight(20 if name == "partial" else 28, 150, counts=True)
    assert (in_both_forms(prepared, burst(7, 25))[0].failure == 0).all()
