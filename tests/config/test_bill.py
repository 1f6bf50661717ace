"""Money and energy of a run, by hand and beside public measurements."""

from __future__ import annotations

from typing import Any

import pytest

from c2c.config import build, load, simulate
from c2c.hardware import load_platform
from c2c.models import flops_per_token, load_spec

ONE = "catalog={name: one, models: [{spec: llama-3-8b}]}"
FEW = [
    "hardware=h100_sxm", "mig=1x80gb", "system=dedicated", ONE, "workload=poisson",
    "workload.rate_rps=5", "workload.requests=20", "workload.lengths=fixed",
    "workload.prompt_tokens=100", "workload.output_tokens=50",
]  # fmt: skip


def summary(*more: str) -> dict[str, Any]:
    return dict(simulate(build(load([*FEW, *more])), compiled=False).summary)


def test_energy_is_idle_watts_bytes_and_operations() -> None:
    found = summary()
    run, cost = found["run"], found["cost"]
    flops = float(flops_per_token(load_spec("llama-3-8b"), 0)) * 20 * 150
    by_hand = 70 * run["end_s"] + 155e-12 * (run["hbm_bytes"] + run["link_bytes"])
    assert cost["energy_j"] == pytest.approx(by_hand + 2.56e-12 * flops)
    assert cost["power_w"] == pytest.approx(cost["energy_j"] / run["end_s"])
    assert cost["joules_per_million_tokens"] == pytest.approx(cost["energy_j"] * 1e6 / 1000)
    assert cost["usd"] == pytest.approx(3.2 * run["end_s"] / 3600)
    assert cost["usd_per_million_tokens"] == pytest.approx(cost["usd"] * 1e6 / 1000)


def test_a_chip_draws_no_more_than_it_can_while_it_computes() -> None:
    found = summary("hardware.gpu.power_w=100", "hardware.gpu.pj_per_byte=1e6")
    busy = found["run"]["utilisation"]["instance_busy_mean"]
    assert found["cost"]["power_w"] == pytest.approx(70 + 30 * busy)


def test_what_no_file_states_is_not_made_up() -> None:
    cost = summary("hardware=a100_40", "mig=1x40gb")["cost"]
    assert cost["energy_j"] is cost["power_w"] is cost["joules_per_million_tokens"] is None
    watts = {"idle_w": 50, "pj_per_byte": 200, "pj_per_flop": 3, "usd_per_hour": 1}
    own = [f"+hardware.gpu.{name}={value}" for name, value in watts.items()]
    own += [f"+hardware.gpu.source.{name}='assumption: mine'" for name in watts]
    cost = summary("hardware=a100_40", "mig=1x40gb", *own)["cost"]
    assert cost["power_w"] > 50
    assert cost["usd"] > 0


def node(*overrides: str) -> dict[str, Any]:
    words = [
        "workload=poisson", "workload.rate_rps=8", "workload.requests=20",
        "workload.output_tokens=20", "workload.lengths=fixed", *overrides,
    ]  # fmt: skip
    return dict(simulate(build(load(words)), compiled=False).summary)


def test_a_node_costs_all_its_gpus() -> None:
    found = node("system=tessera", "node=b200_h100")
    cost, hours = found["cost"], found["run"]["end_s"] / 3600
    assert cost["usd"] == pytest.approx((6.0 + 3.2) * hours)
    assert cost["unknown"] == []
    shares, idle_w = found["run"]["resources"], 140 + 70
    b200, h100 = (load_platform(name).gpu for name in ("b200", "h100_sxm"))
    at_most = sum(
        shares[name] * (gpu.power_w - gpu.idle_w)  # type: ignore[operator]
        for name, gpu in (("b200", b200), ("h100_sxm", h100))
    )
    assert idle_w < cost["power_w"] <= idle_w + at_most


def test_two_nodes_cost_twice_and_a_node_may_have_a_price_of_its_own() -> None:
    words = ["system=cocoserve", "node=a100_40_pcie_x4", "system.layout.replicated=2"]
    found = node(*words)
    assert found["cost"]["usd"] is None
    assert found["cost"]["unknown"] == ["no price of a100_40", "no watts of a100_40"]
    found = node(*words, "+node.usd_per_hour=5", "superchips=2")
    assert found["cost"]["usd"] == pytest.approx(2 * 5 * found["run"]["end_s"] / 3600)
    assert found["cost"]["unknown"] == ["no watts of a100_40"]


def test_devices_beside_the_node_are_paid_for() -> None:
    words = ["system=weaver", "+node.usd_per_hour=2"]
    found = [node(*words, f"system.layout.prompt_devices={n}") for n in (0, 1)]
    usd = [one["cost"]["usd"] / one["run"]["end_s"] * 3600 for one in found]
    assert usd == pytest.approx([2.0, 4.0])
