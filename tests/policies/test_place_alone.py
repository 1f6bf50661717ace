"""A model whose link demand alone exceeds the budget is served, not lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from c2c.config import build, load, simulate
from c2c.policies import CANDIDATE_DTYPE, BandwidthAware, place


def candidates(*rows: dict[str, Any]) -> Any:
    table = np.zeros(len(rows), CANDIDATE_DTYPE).view(np.recarray)
    for k, row in enumerate(rows):
        for name, value in ({"is_free": 1, "kv_capacity": 10} | row).items():
            table[name][k] = value
    return table


def test_a_demand_beyond_the_budget_goes_only_where_nothing_else_is_promised() -> None:
    beside, alone = {"link_left_gbps": 100.0}, {"link_left_gbps": 300.0, "is_alone": 1}
    policy = BandwidthAware()
    assert place(policy, (), candidates(beside, alone), 2, 10, 500.0, 0) == 1
    assert place(policy, (), candidates(beside, beside), 2, 10, 500.0, 0) == -1
    assert place(policy, (), candidates(beside, alone), 2, 11, 500.0, 0) == -1  # KV still binds
    assert place(policy, (), candidates({"link_left_gbps": 600.0}), 1, 10, 500.0, 0) == 0


@pytest.mark.parametrize("beside", [(), ("llama-3-3b",)])
def test_every_request_of_such_a_model_is_served(beside: tuple[str, ...]) -> None:
    models = ",".join(f"{{spec: {name}}}" for name in ("llama-3-70b", *beside))
    setup = build(
        load(
            [
                "catalog=dense_70b", f"catalog.models=[{models}]", "mig=1x96gb",
                "system.check_slo=false", "slo.tpot_s=0.1", "workload=deterministic",
                "workload.requests=12", "system.preempt.after_s=1",
            ]
        )
    )  # fmt: skip
    demands = setup.prepared.fleet.deployment.demand_gbps
    assert demands[0] > setup.prepared.budget_gbps
    summary = simulate(setup, compiled=False).summary
    assert summary["finished"] == summary["requests"] == 12
    assert len(summary["models"]) == 1 + len(beside)
