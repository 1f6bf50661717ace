"""Engines over several chips, from the settings to the summary."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from c2c.config import build, load, simulate
from c2c.config.simulate import SimulationResult
from c2c.errors import SettingError
from tests.tiers import tiered

RUN = ("workload=poisson", "workload.rate_rps=2", "workload.requests=24", "system.check_slo=false")
BIG = ("catalog=dense", "catalog.models=[{spec: llama-3-70b}]")
SYSTEMS = (
    "serverlessllm", "c2cserve", "c2cserve_plus", "dedicated", "engine", "vllm_sleep", "aegaeon",
    "serverlessllm_fast", "serverlessllm_hybrid", "c2cserve_letter",
    "layer_staging", "mig_resident", "aegaeon_hybrid",
)  # fmt: skip


def served(*given: str, compiled: bool = True) -> SimulationResult:
    return simulate(build(load([*RUN, *given])), compiled=compiled)


def on(system: str, *given: str) -> tuple[str, ...]:
    return (*BIG, f"system={system}", "superchips=4", "tensor_parallel=4", *given)


@pytest.mark.parametrize("system", tiered(SYSTEMS, "serverlessllm", "c2cserve_plus"))
def test_every_system_serves_over_four_chips_compiled_as_interpreted(system: str) -> None:
    found = served(*on(system))
    assert found.requests == served(*on(system), compiled=False).requests
    assert found.summary["run"]["chips"] == 1
    assert found.summary["run"]["ranks"] == 4
    assert found.summary["failed"] == 0


def test_one_rank_is_a_run_without_the_setting() -> None:
    plain, one = served("system=c2cserve"), served("system=c2cserve", "tensor_parallel=1")
    assert plain.requests == one.requests
    assert plain.summary == one.summary
    assert "ranks" not in plain.summary["run"]


def test_weights_stream_over_all_links_and_money_is_of_all_chips() -> None:
    small = ("catalog=dense", "catalog.models=[{spec: llama-3-8b}]", "system=c2cserve")
    four = served(*small, "mig=1x96gb", "superchips=4", "tensor_parallel=4").summary
    one = served(*small, "mig=1x96gb").summary
    assert four["run"]["link_gbps"] == 4 * one["run"]["link_gbps"]
    for run in (four, one):
        hours = run["run"]["end_s"] / 3600
        chips = run["run"].get("ranks", 1)
        assert run["cost"]["usd"] == pytest.approx(chips * 2.29 * hours)
        assert chips * 70.0 < run["cost"]["power_w"] < chips * 1000.0
    assert median(four) < 0.5 * median(one)


def median(summary: Any) -> float:
    result: float = summary["tpot_s"]["p50"]
    return result


def test_a_faster_interconnect_serves_no_later() -> None:
    def last(*given: str) -> float:
        table: pa.Table = served(*on("serverlessllm"), "hardware=h100_sxm", *given).requests
        return max(table["finished_s"].to_pylist())

    assert last("hardware.gpu.nvlink_gbps=1e9") < last() < last("hardware.gpu.nvlink_gbps=1")


def test_a_mixture_that_no_chip_holds_is_served_by_eight() -> None:
    given = ("hardware=h200_pcie5", "catalog=deepseek_v3", "superchips=8", "tensor_parallel=8",
             "system=serverlessllm", "system.starts_active=true")  # fmt: skip
    split, apart = served(*given), served(*given, "expert_parallel=true")
    for found in (split, apart):
        assert found.summary["failed"] == 0
    assert median(apart.summary) != median(split.summary)


def test_experts_in_a_cache_are_served_over_ranks() -> None:
    given = ("catalog=moe", "system=moe_infinity", "superchips=2", "tensor_parallel=2")
    assert served(*given, "workload.requests=4").summary["failed"] == 0


def test_a_failed_chip_takes_its_group_along() -> None:
    given = ("catalog=dense", "system=serverlessllm", "superchips=4", "tensor_parallel=2",
             "failures.events=[{at_s: 2, chip: 3, repair_s: 5}]")  # fmt: skip
    lost = served(*given).summary["run"]["failures"]["chips"]
    assert [row["chip"] for row in lost] == [1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("tensor_parallel=4",), r"superchips=1: expected a multiple of the 4 chips.*superchips=4"),
        (("tensor_parallel=0",), "tensor_parallel=0: expected a whole number above 0"),
        (("tensor_parallel=3", "superchips=3"), "tensor_parallel=3.* 8 kv_heads of llama-3-8b"),
        (("expert_parallel=true",), "expert_parallel=True: expected false"),
        (("tensor_parallel=2", "superchips=2", "mig=7x12gb"), "mig='7x12gb'.*A MIG slice"),
        (("tensor_parallel=2", "superchips=2", "mig=planned"), "mig='planned'"),
        (("tensor_parallel=2", "superchips=2", "system=tessera", "node=h100_rtx"),
         "tensor_parallel=2: expected 1 with a node"),
        (("tensor_parallel=2", "superchips=2", "failures.host_chips=3"), "failures.host_chips=3"),
        (("tensor_parallel=2", "fleet.parts=[{hardware: gh200, count: 3}]"),
         r"fleet.parts\[0\].count=3: expected a multiple of the 2 chips"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_in_one_line(given: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingError, match=message) as error:
        build(load([*RUN, *given]))
    assert "\n" not in str(error.value)


def test_kv_caches_have_the_memory_of_all_chips() -> None:
    def room(count: int) -> float:
        given = ("catalog=dense", "catalog.models=[{spec: llama-3-8b}]", "system=serverlessllm")
        setup = build(load([*RUN, *given, f"superchips={count}", f"tensor_parallel={count}"]))
        return float(setup.prepared.fleet.kv_capacity_bytes[0, 0])

    memory, weights = 96e9, 16.06e9
    for count in (1, 2, 4):
        most = count * (memory - 1e9) - weights  # beside activations
        assert 0.97 * most < room(count) < most
