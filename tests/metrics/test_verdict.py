"""A load that is too high is said, with numbers; one that is served is not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.metrics import Room, judge

SERVICE_S = 0.5
ROOM = Room(
    models=("a", "b"), chips=1, link_gbps=100.0, hbm_gbps=np.full(2, 1000.0),
    kv_tokens=np.full((2, 2), 1000), max_batch=8,
)  # fmt: skip


def served(arrival_s: np.ndarray, servers: int = 1, service_s: float = SERVICE_S) -> dict[str, Any]:
    """First come first served by equal servers, each with one request at a time."""
    free = np.zeros(servers)
    start, where = np.zeros(len(arrival_s)), np.zeros(len(arrival_s), np.int32)
    for k, at in enumerate(arrival_s):
        s = int(free.argmin())
        start[k], where[k] = max(at, free[s]), s
        free[s] = start[k] + service_s
    return {"arrival_s": arrival_s, "started_s": start, "slice": where, "service_s": service_s}


def table(
    model: str = "a", link_bytes: float = 0.0, tokens: int = 10,
    first_token_s: np.ndarray | None = None, start_kind: str = "warm", **runs: Any,
) -> pa.Table:  # fmt: skip
    n = len(runs["arrival_s"])
    finished = runs["started_s"] + runs["service_s"]
    first = finished if first_token_s is None else first_token_s
    return pa.table(
        {
            "model": pa.array([model] * n).dictionary_encode(),
            "arrival_s": runs["arrival_s"],
            "started_s": runs["started_s"],
            "first_token_s": first,
            "finished_s": finished,
            "ttft_slo_s": np.full(n, 2.0),
            "tpot_slo_s": np.full(n, 0.1),
            "prompt_tokens": np.full(n, tokens),
            "output_tokens": np.full(n, 1 if first_token_s is None else 11),
            "slice": runs["slice"],
            "instance": runs.get("instance", runs["slice"]),
            "chip": np.zeros(n, np.int32),
            "start_kind": pa.array([start_kind] * n).dictionary_encode(),
            "link_bytes": np.full(n, link_bytes),
            "hbm_bytes": np.zeros(n),
            "cached_hbm_tokens": np.zeros(n, int),
            "cached_host_tokens": np.zeros(n, int),
            "reason": pa.array([""] * n).dictionary_encode(),
        }
    )


def poisson(rate: float, n: int, seed: int = 0, since: float = 0.0) -> np.ndarray:
    return since + np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate, n))


def verdict(records: pa.Table, room: Room = ROOM) -> dict[str, Any]:
    result = judge(records, room)
    assert result is not None
    assert len(result["text"]) == (1 if result["state"] == "served" else 2)
    json.dumps(result, allow_nan=False)
    return result


def overload(records: pa.Table, room: Room = ROOM) -> dict[str, Any]:
    result = verdict(records, room)
    assert result["state"] == "overload", result["text"]
    return result


@settings(deadline=None, max_examples=25)
@given(st.sampled_from([0.5, 0.7, 0.9]), st.integers(100, 3000), st.integers(0, 10**6))
def test_a_load_that_is_served_is_passed_over(load: float, n: int, seed: int) -> None:
    assert verdict(table(**served(poisson(load / SERVICE_S, n, seed))))["state"] != "overload"


@pytest.mark.parametrize("load", [1.1, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_load_that_is_too_high_is_said_with_its_rates(load: float, seed: int) -> None:
    found = overload(table(**served(poisson(load / SERVICE_S, 4000, seed))))
    assert found["offered_rps"] == pytest.approx(load / SERVICE_S, rel=0.08)
    assert found["sustainable_rps"] == pytest.approx(1.0 / SERVICE_S, rel=0.02)
    assert found["binds"] == "idle_slices"  # the second slice has nothing to do
    assert found["idle_slices"] == pytest.approx(1.0, abs=0.05)
    # Where placement has promised 60 of 100 GB/s to the first, no other finds room.
    promised = replace(ROOM, promise_gbps=np.array([60.0, 60.0]), budget_gbps=100.0)
    found = overload(table(**served(poisson(load / SERVICE_S, 4000, seed))), promised)
    assert found["binds"] == "promises"
    assert found["promised"] == pytest.approx(0.6, abs=0.03)
    assert found["asked"] == 0.6
    both = overload(table(**served(poisson(2 * load / SERVICE_S, 8000, seed), servers=2)))
    assert (both["binds"], both["slices"]) == ("compute", 2)
    assert both["sustainable_rps"] == pytest.approx(2.0 / SERVICE_S, rel=0.02)
    assert len(both["text"]) == 2
    assert f"{both['waiting']:,} waited" in both["text"][0]


def test_a_burst_that_drains_is_passed_over() -> None:
    calm = poisson(0.4 / SERVICE_S, 2000, 1)
    burst = np.full(200, calm[1000])
    assert verdict(table(**served(np.sort(np.concatenate([calm, burst])))))["state"] != "overload"
    # and one at the very end, which drains after the last arrival
    late = np.full(200, calm[-1])
    assert verdict(table(**served(np.concatenate([calm, late]))))["state"] != "overload"


def test_on_and_off_load_that_drains_each_time_is_passed_over() -> None:
    parts = [poisson(1.5 / SERVICE_S, 150, k, since=k * 200.0) for k in range(20)]
    assert verdict(table(**served(np.sort(np.concatenate(parts)))))["state"] != "overload"


def test_what_binds_is_the_resource_that_is_full() -> None:
    runs = served(poisson(4.0 / SERVICE_S, 4000, 3), servers=2)
    # two requests at a time, each half a second: 100 GB/s are full at 25 GB each
    link = overload(table(link_bytes=25e9, **runs))
    assert link["binds"] == "link"
    assert link["link"] == pytest.approx(1.0, abs=0.03)
    kv = overload(table(tokens=990, **runs))
    assert kv["binds"] == "kv"
    narrow = Room(**{n: getattr(ROOM, n) for n in ROOM.__slots__} | {"max_batch": 1})
    batch = overload(table(**runs), narrow)
    assert batch["binds"] == "batch"


def test_slices_that_stand_idle_until_a_model_has_started_are_told_from_unused_ones() -> None:
    arrival = poisson(4.0, 400, 3)
    runs = {"arrival_s": arrival, "started_s": arrival[-1] + 50.0 + np.arange(400) * 0.1}
    slices = np.zeros(400, np.int32)
    for kind, binds in (("switch", "starts"), ("warm", "idle_slices")):
        found = overload(table(**runs, service_s=0.5, slice=slices, start_kind=kind))
        assert found["binds"] == binds
        assert found["idle_slices"] == 2.0


def test_one_hot_model_beside_calm_ones_is_named() -> None:
    hot = table("a", **served(poisson(2.0 / SERVICE_S, 2000, 5)))
    calm_runs = served(poisson(0.3 / SERVICE_S, 300, 6))
    calm_runs["slice"] = calm_runs["slice"] + 1
    found = overload(pa.concat_tables([hot, table("b", **calm_runs)]))
    assert found["models"] == ["a"]
    assert found["offered_rps"] == pytest.approx(2.0 / SERVICE_S, rel=0.1)
    assert "of a offered" in found["text"][0]


def test_requests_that_start_at_once_and_do_not_end_are_seen_too() -> None:
    runs = served(poisson(2.0 / SERVICE_S, 3000, 8))
    found = overload(table(first_token_s=runs["arrival_s"] + 0.01, **runs))
    assert found["sustainable_rps"] == pytest.approx(1.0 / SERVICE_S, rel=0.03)


def test_a_steady_crowd_that_misses_its_target_is_no_growth() -> None:
    arrival = poisson(2.0, 600, 9)
    long = {"arrival_s": arrival, "started_s": arrival, "slice": np.zeros(600, np.int32)}
    late = table(first_token_s=arrival + 3.0, service_s=40.0, **long)  # 80 at a time, for ever
    found = verdict(late)
    assert found["state"] == "missed"
    assert (found["late"], found["met"], found["steady"]) == (1.0, 0.0, True)


def batch_of(size: int, arrival_s: np.ndarray) -> pa.Table:
    """Requests of 30 s, at most `size` at a time; each has its first token at its start."""
    runs = served(arrival_s, servers=size, service_s=30.0) | {
        "slice": np.zeros(len(arrival_s), np.int32)
    }
    return table(first_token_s=runs["started_s"] + 0.01, **runs)


@pytest.mark.parametrize(("size", "waited"), [(256, 44), (200, 100)])
def test_no_rate_is_sustainable_if_requests_take_longer_than_the_load(
    size: int, waited: int
) -> None:
    found = overload(batch_of(size, np.linspace(0.0, 29.0, 300)))
    assert found["sustainable_rps"] is None
    assert (found["waiting"], found["in_service"]) == (waited, size)
    assert 4.0 < found["served_rps"] < size / 30.0
    assert f"{waited} waited and {size} were in service" in found["text"][0]
    assert "sustainable" not in found["text"][0]
    longer = overload(batch_of(size, np.linspace(0.0, 300.0, 3000)))
    assert longer["sustainable_rps"] == pytest.approx(size / 30.0, rel=0.15)


def test_a_model_that_waits_for_a_slice_has_no_sustainable_rate() -> None:
    calm = table("a", **served(poisson(0.5 / SERVICE_S, 600, 6)))
    arrival = poisson(0.5, 300, 3)
    begun = arrival[-1] + 1.0 + 0.4 * np.arange(300)
    where = {"arrival_s": arrival, "slice": np.ones(300, np.int32), "start_kind": "switch"}
    starved = table("b", started_s=begun, service_s=0.4, **where)
    found = overload(pa.concat_tables([calm, starved]))
    assert (found["models"], found["sustainable_rps"], found["waiting"]) == (["b"], None, 300)
    assert found["served_rps"] == pytest.approx(
        300 / (arrival[-1] + 121.0 - found["since_s"]), rel=0.05
    )


def test_a_load_shorter_than_its_requests_is_not_called_stable() -> None:
    arrival = np.linspace(0.0, 29.0, 100)
    short = verdict(batch_of(256, arrival))
    assert short["state"] == "missed"  # TPOT of 3 s
    assert short["text"][0].endswith("too short to show a growing queue")
    assert verdict(batch_of(256, 10.0 * arrival))["text"][0].endswith("queues stable")


def test_a_run_without_requests_has_no_verdict() -> None:
    none = table(**served(np.zeros(0)))
    assert judge(none, ROOM) is None


def missed(**more: Any) -> dict[str, Any]:
    """Requests that all miss a target while two slices serve 600 of them without a queue."""
    arrival = poisson(1.0, 600, 4)
    runs = {
        "arrival_s": arrival, "started_s": arrival, "service_s": 4.0,
        "slice": np.arange(600, dtype=np.int32) % 2,
    }  # fmt: skip
    result = verdict(table(**(runs | more)))
    assert result["state"] == "missed"
    return result


def test_where_late_requests_waited_tells_what_binds() -> None:
    arrival = poisson(1.0, 600, 4)
    assert missed()["binds"] == "compute"  # 4 s in the first step, 2 s are allowed
    waited = {"started_s": arrival + 3.0, "service_s": 0.1}
    assert missed(**waited, start_kind="switch")["binds"] == "starts"  # slices were free
    one = replace(ROOM, hbm_gbps=np.full(1, 1000.0), kv_tokens=np.full((2, 1), 1000))
    waited |= {"arrival_s": arrival, "slice": np.zeros(600, np.int32)}
    assert verdict(table(**waited, start_kind="switch"), one)["binds"] == "starts"
    busy = {"started_s": arrival + 20.0, "service_s": 8.0}
    assert missed(**busy, start_kind="switch")["binds"] == "slices"
    assert missed(link_bytes=100e9)["binds"] == "link"
    engines = np.arange(600) % 8
    turns = missed(instance=engines, service_s=8.0)
    assert turns["binds"] == "turns"
    assert turns["engines"] > 1.5


def with_failures(records: pa.Table, failed: np.ndarray, reason: str) -> pa.Table:
    """The same requests, of which some failed as they came."""
    for name in ("started_s", "first_token_s", "finished_s"):
        times = np.where(failed, np.nan, records.column(name).to_numpy())
        records = records.set_column(records.column_names.index(name), name, pa.array(times))
    reasons = pa.array([reason if f else "" for f in failed]).dictionary_encode()
    return records.set_column(records.column_names.index("reason"), "reason", reasons)


def test_requests_that_failed_say_so_and_nothing_of_resources() -> None:
    arrival = poisson(1.0, 600, 4)
    waited = table(
        arrival_s=arrival, started_s=arrival + 3.0, service_s=0.1, start_kind="switch",
        slice=np.arange(600, dtype=np.int32) % 2,
    )  # fmt: skip
    most, few = np.arange(600) % 3 > 0, np.arange(600) % 3 == 0
    found = verdict(with_failures(waited, most, "weights_exceed_slice"))
    assert (found["binds"], found["failures"]) == ("failures", {"weights_exceed_slice": 400})
    assert "weights_exceed_slice 400" in found["text"][1]
    assert verdict(with_failures(waited, few, "weights_exceed_slice"))["binds"] == "starts"
    assert verdict(with_failures(waited, most, "deadline"))["binds"] == "starts"


def test_slow_tokens_are_told_from_late_ones() -> None:
    arrival = poisson(1.0, 600, 4)
    slow = missed(first_token_s=arrival + 0.1)  # 10 more tokens in 3.9 s, 0.1 s each are allowed
    assert (slow["late"], slow["slow"], slow["failed"]) == (0.0, 1.0, 0.0)
    assert slow["text"][0].startswith("targets missed all the time, by a: 0 % of requests met both")
    assert "; TPOT missed by 100 %;" in slow["text"][0]


def test_misses_of_a_burst_are_no_steady_ones() -> None:
    calm = poisson(0.4 / SERVICE_S, 2000, 1)
    found = verdict(table(**served(np.sort(np.concatenate([calm, np.full(200, calm[1000])])))))
    assert (found["state"], found["steady"]) == ("missed", False)
    assert found["since_s"] <= calm[1000] <= found["until_s"]
    assert "in bursts, the worst from" in found["text"][0]


def test_the_share_that_is_wanted_decides() -> None:
    arrival = poisson(1.0, 600, 4)
    first = np.where(np.arange(600) < 12, arrival + 3.0, arrival + 0.01)  # 2 % are late
    runs = {"arrival_s": arrival, "started_s": arrival, "service_s": 4.0,
            "slice": np.zeros(600, np.int32)}  # fmt: skip
    records = table(first_token_s=first, **runs)
    at = records.column_names.index("tpot_slo_s")
    records = records.set_column(at, "tpot_slo_s", pa.array(np.full(600, 1.0)))
    for wanted, state in ((0.99, "missed"), (0.98, "served")):
        found = judge(records, ROOM, wanted)
        assert found is not None
        assert (found["state"], found["met"]) == (state, pytest.approx(0.98))


def test_slices_for_prompts_are_not_idle_because_records_are_of_those_that_decode() -> None:
    arrival = poisson(4.0, 400, 3)
    runs = {"arrival_s": arrival, "started_s": arrival[0] + np.arange(400) * 0.5}
    first_s = runs["started_s"] + 0.1
    made = table(**runs, first_token_s=first_s, service_s=0.5, slice=np.ones(400, np.int32))
    assert overload(made)["binds"] == "idle_slices"
    apart = replace(ROOM, handed=np.array([False, True]))
    found = overload(made, apart)
    assert found["binds"] == "compute"
    assert found["slices"] == 1.0
    assert found["occupied"] == pytest.approx(0.8, abs=0.02)  # from the first token on
