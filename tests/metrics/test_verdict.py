"""A load that is too high is said, with numbers; one that is served is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.metrics import Room, judge

SERVICE_S = 0.5
ROOM = Room(
    models=("a", "b"),
    chips=1,
    link_gbps=100.0,
    hbm_gbps=np.full(2, 1000.0),
    kv_tokens=np.full((2, 2), 1000),
    max_batch=8,
)


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
    model: str = "a",
    link_bytes: float = 0.0,
    tokens: int = 10,
    first_token_s: np.ndarray | None = None,
    **runs: Any,
) -> pa.Table:
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
            "chip": np.zeros(n, np.int32),
            "start_kind": pa.array(["warm"] * n).dictionary_encode(),
            "link_bytes": np.full(n, link_bytes),
            "hbm_bytes": np.zeros(n),
        }
    )


def poisson(rate: float, n: int, seed: int = 0, since: float = 0.0) -> np.ndarray:
    return since + np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate, n))


def verdict(records: pa.Table, room: Room = ROOM) -> dict[str, Any] | None:
    return judge(records, room, records.select)


@settings(deadline=None, max_examples=25)
@given(st.sampled_from([0.5, 0.7, 0.9]), st.integers(100, 3000), st.integers(0, 10**6))
def test_a_load_that_is_served_is_passed_over(load: float, n: int, seed: int) -> None:
    assert verdict(table(**served(poisson(load / SERVICE_S, n, seed)))) is None


@pytest.mark.parametrize("load", [1.1, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_load_that_is_too_high_is_said_with_its_rates(load: float, seed: int) -> None:
    found = verdict(table(**served(poisson(load / SERVICE_S, 4000, seed))))
    assert found is not None
    assert found["offered_rps"] == pytest.approx(load / SERVICE_S, rel=0.08)
    assert found["sustainable_rps"] == pytest.approx(1.0 / SERVICE_S, rel=0.02)
    assert found["binds"] == "idle_slices"  # the second slice has nothing to do
    assert found["idle_slices"] == pytest.approx(1.0, abs=0.05)
    both = verdict(table(**served(poisson(2 * load / SERVICE_S, 8000, seed), servers=2)))
    assert both is not None
    assert (both["binds"], both["slices"]) == ("compute", 2)
    assert both["sustainable_rps"] == pytest.approx(2.0 / SERVICE_S, rel=0.02)
    assert len(both["text"]) == 2
    assert f"{both['waiting']:,} waited" in both["text"][0]


def test_a_burst_that_drains_is_passed_over() -> None:
    calm = poisson(0.4 / SERVICE_S, 2000, 1)
    burst = np.full(200, calm[1000])
    assert verdict(table(**served(np.sort(np.concatenate([calm, burst]))))) is None
    # and one at the very end, which drains after the last arrival
    late = np.full(200, calm[-1])
    assert verdict(table(**served(np.concatenate([calm, late])))) is None


def test_on_and_off_load_that_drains_each_time_is_passed_over() -> None:
    parts = [poisson(1.5 / SERVICE_S, 150, k, since=k * 200.0) for k in range(20)]
    assert verdict(table(**served(np.sort(np.concatenate(parts))))) is None


def test_what_binds_is_the_resource_that_is_full() -> None:
    runs = served(poisson(4.0 / SERVICE_S, 4000, 3), servers=2)
    # two requests at a time, each half a second: 100 GB/s are full at 25 GB each
    link = verdict(table(link_bytes=25e9, **runs))
    assert link is not None
    assert link["binds"] == "link"
    assert link["link"] == pytest.approx(1.0, abs=0.03)
    kv = verdict(table(tokens=990, **runs))
    assert kv is not None
    assert kv["binds"] == "kv"
    narrow = Room(**{n: getattr(ROOM, n) for n in ROOM.__slots__} | {"max_batch": 1})
    batch = verdict(table(**runs), narrow)
    assert batch is not None
    assert batch["binds"] == "batch"


def test_one_hot_model_beside_calm_ones_is_named() -> None:
    hot = table("a", **served(poisson(2.0 / SERVICE_S, 2000, 5)))
    calm_runs = served(poisson(0.3 / SERVICE_S, 300, 6))
    calm_runs["slice"] = calm_runs["slice"] + 1
    found = verdict(pa.concat_tables([hot, table("b", **calm_runs)]))
    assert found is not None
    assert found["models"] == ["a"]
    assert found["offered_rps"] == pytest.approx(2.0 / SERVICE_S, rel=0.1)
    assert "of a offered" in found["text"][0]


def test_requests_that_start_at_once_and_do_not_end_are_seen_too() -> None:
    runs = served(poisson(2.0 / SERVICE_S, 3000, 8))
    found = verdict(table(first_token_s=runs["arrival_s"] + 0.01, **runs))
    assert found is not None
    assert found["sustainable_rps"] == pytest.approx(1.0 / SERVICE_S, rel=0.03)


def test_a_steady_crowd_that_misses_its_target_is_no_growth() -> None:
    arrival = poisson(2.0, 600, 9)
    long = {"arrival_s": arrival, "started_s": arrival, "slice": np.zeros(600, np.int32)}
    late = table(first_token_s=arrival + 3.0, service_s=40.0, **long)  # 80 at a time, for ever
    assert verdict(late) is None


def test_a_run_without_requests_has_no_verdict() -> None:
    assert verdict(table(**served(np.zeros(0)))) is None
