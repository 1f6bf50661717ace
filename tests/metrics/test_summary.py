import json

import numpy as np
import pyarrow as pa
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from c2c.errors import DataError
from c2c.metrics import RECORD_SCHEMA, record_table, summarise, utilisation


def table(n: int, *, failed: tuple[int, ...] = (), seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.uniform(0, 1000, n))
    first = arrival + rng.exponential(0.4, n)
    output = rng.integers(1, 50, n)
    finish = first + (output - 1) * rng.uniform(0.01, 0.2, n)
    status = np.zeros(n, int)
    status[list(failed)] = 1
    first[status == 1] = np.nan
    finish[status == 1] = np.nan
    columns = {
        "id": np.arange(n), "model": rng.integers(0, 3, n), "arrival_s": arrival,
        "admitted_s": arrival, "started_s": arrival, "first_token_s": first, "finished_s": finish,
        "prompt_tokens": rng.integers(1, 1000, n), "output_tokens": output,
        "instance": np.zeros(n, int), "slice": np.zeros(n, int), "chip": np.zeros(n, int),
        "start_kind": rng.integers(0, 3, n), "chunks": np.ones(n, int), "alpha_mean": np.zeros(n),
        "link_bytes": np.ones(n), "hbm_bytes": np.ones(n), "cached_hbm_tokens": np.zeros(n, int),
        "cached_host_tokens": np.zeros(n, int), "ttft_slo_s": np.full(n, 1.0),
        "tpot_slo_s": np.full(n, 0.1), "status": status, "reason": status,
    }  # fmt: skip
    return record_table(columns, {"model": ["b", "a", "c"], "reason": ["", "kv"]})


def test_totals_are_the_sum_of_the_models() -> None:
    s = summarise(table(2000, failed=(3, 7)))
    assert s["requests"] == 2000
    assert s["failed"] == 2
    assert s["failures"] == {"kv": 2}
    assert list(s["models"]) == ["a", "b", "c"]
    for key in ("requests", "finished", "failed", "output_tokens", "goodput_rps"):
        assert s[key] == pytest.approx(sum(m[key] for m in s["models"].values()))
    assert sum(s["starts"].values()) == 2000


def test_against_row_by_row_arithmetic() -> None:
    records = table(500, failed=(0, 100))
    s = summarise(records)
    both = 0
    for r in records.to_pylist():
        if r["status"] != "finished":
            continue
        ttft_ok = r["first_token_s"] - r["arrival_s"] <= r["ttft_slo_s"]
        n = r["output_tokens"]
        tpot_ok = n == 1 or (r["finished_s"] - r["first_token_s"]) / (n - 1) <= r["tpot_slo_s"]
        both += ttft_ok and tpot_ok
    assert s["attainment"]["both"] == pytest.approx(both / 500)
    assert s["goodput_rps"] == pytest.approx(both / s["span_s"])


def test_all_failed_and_empty_are_json() -> None:
    for records in (table(5, failed=(0, 1, 2, 3, 4)), RECORD_SCHEMA.empty_table(), table(0)):
        s = summarise(records, {"busy_s": np.zeros(2)})
        assert json.loads(json.dumps(s, allow_nan=False)) == s
        assert s["finished"] == 0
        assert s["goodput_rps"] == 0
        assert s["ttft_s"]["p99"] is None


def test_chunks_with_dictionaries_of_their_own() -> None:
    one, two = table(50, seed=1), table(50, seed=2)
    names = ["c", "b", "a"]
    swapped = two.set_column(
        1,
        RECORD_SCHEMA.field("model"),
        pa.array([v.as_py() for v in two["model"]]).dictionary_encode(),
    )
    assert swapped["model"].chunk(0).dictionary.to_pylist() != names
    together = summarise(pa.concat_tables([one, swapped]))
    counts = {m: sum(v.as_py() == m for t in (one, two) for v in t["model"]) for m in "abc"}
    assert {m: b["requests"] for m, b in together["models"].items()} == counts


def test_missing_column_is_named() -> None:
    with pytest.raises(DataError, match="ttft_slo_s"):
        summarise(table(3).drop_columns(["ttft_slo_s"]))


def test_bad_codes_and_lengths_are_refused() -> None:
    good = {n: np.zeros(2, int) for n in RECORD_SCHEMA.names}
    names = {"model": ["m"], "reason": [""]}
    record_table(good, names)
    with pytest.raises(DataError, match="model"):
        record_table(good | {"model": np.array([0, 1])}, names)
    with pytest.raises(DataError, match="length"):
        record_table(good | {"id": np.zeros(3)}, names)


def test_half_a_million_rows(benchmark: BenchmarkFixture) -> None:
    records = table(500_000)
    summary = benchmark.pedantic(summarise, args=(records,), rounds=1)
    assert summary["requests"] == 500_000


def test_utilisation_is_share_of_time_and_capacity() -> None:
    u = utilisation(
        end_s=10.0, busy_s=np.array([5.0, 0.0]), chip_link_bytes=np.array([400e9]),
        link_capacity_gbps=400.0, instance_hbm_bytes=np.array([1e12, 0.0]),
        instance_hbm_gbps=np.array([500.0, 500.0]),
    )  # fmt: skip
    assert u["instance_busy"] == [0.5, 0.0]
    assert u["link_mean"] == pytest.approx(0.1)
    assert u["hbm"] == pytest.approx([0.2, 0.0])
    later = utilisation(
        end_s=10.0, busy_s=np.array([5.0, 2.0]), chip_link_bytes=np.array([400e9]),
        link_capacity_gbps=400.0, instance_hbm_bytes=np.array([1e12, 1e12]),
        instance_hbm_gbps=np.array([500.0, 500.0]), there_s=np.array([10.0, 4.0]),
    )  # fmt: skip
    assert later["instance_busy"] == [0.5, 0.5]
    assert later["instance_busy_mean"] == pytest.approx(0.5)
    assert later["hbm_mean"] == pytest.approx(2e12 / (500e9 * 14.0))
    nothing = utilisation(
        end_s=0.0, busy_s=np.zeros(1), chip_link_bytes=np.zeros(1), link_capacity_gbps=1.0
    )
    assert nothing["link_mean"] == 0.0
