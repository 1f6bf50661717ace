"""A million requests with every system of `conf/system`: none is lost, and memory stays bounded."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from c2c.config import choices
from experiments.lab.bench.simulator import BenchSettings, by_system, measure_point

# C2C_LONG: fewer requests. C2C_LONG_OUT=<file>: what each run took, a line of JSON each.
REQUESTS = int(os.environ.get("C2C_LONG", "1000000"))
# What a process may hold more for a request more: the columns that the summary reads back, and in a
# closed loop the requests themselves, which come as one block (192 and 453 bytes were measured).
MOST_BYTES = 600
MOST_MB = 2000.0
MIXTURES = tuple(s for s in choices("system") if s.startswith(("moe_", "finemoe")))
OVER_GPUS = ("af", "cocoserve", "muxserve", "pd", "replicas", "tessera", "weaver")

pytestmark = pytest.mark.soak


def overrides(system: str, requests: int) -> list[str]:
    """Return what a system needs to serve so many requests without a queue that grows."""
    if system not in MIXTURES + OVER_GPUS:
        (point,) = by_system(BenchSettings(requests=10 * requests, systems=[system]))
        return point
    mine = ["workload=closed_loop", "workload.concurrency=4", f"workload.requests={requests}"]
    if system in MIXTURES:
        mine += ["catalog=moe", "router.skew=0.6", "router.locality=0.5", "workload.models=2"]
        hybrid = system.endswith("hybrid")
        return [
            f"system={system}",
            *mine,
            *([] if hybrid else ["system.expert_cache.misses=table"]),
        ]
    return [f"system={system}", *mine]


@pytest.mark.parametrize("system", choices("system"))
def test_a_million_requests_are_served_in_bounded_memory(system: str) -> None:
    few, many = (measure_point(overrides(system, n)) for n in (REQUESTS // 10, REQUESTS))
    if out := os.environ.get("C2C_LONG_OUT"):
        with Path(out).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(point | {"name": system}) + "\n" for point in (few, many))
    assert many["finished"] + many["failed"] == many["requests"] > 0.99 * REQUESTS
    more = many["requests"] - few["requests"]
    assert (many["peak_mb"] - few["peak_mb"]) * 1e6 < MOST_BYTES * more
    assert many["peak_mb"] < MOST_MB
