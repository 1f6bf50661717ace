"""Money and energy of a run, by hand and beside public measurements."""

from __future__ import annotations

from typing import Any

import pytest

from c2c.config import build, load, simulate
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
