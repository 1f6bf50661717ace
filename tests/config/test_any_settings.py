"""Whatever settings are put together: refused by name, or every request is served or fails."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from c2c.config import build, choices, load, simulate
from c2c.errors import SettingError
from c2c.hardware import load_platform

EXAMPLES = int(os.environ.get("C2C_SETTINGS", "200"))
CHIPS = sorted(set(choices("hardware")) - {"cpu"})
MIXTURES = [s for s in choices("system") if s.startswith(("moe", "finemoe"))]
PAIRS = ["af", "pd", "replicas", "tessera"]
DENSE = sorted(set(choices("system")) - {*MIXTURES, *PAIRS, "engine"})
CATALOGS = sorted(set(choices("catalog")) - {"moe", "gpt_oss"})
WORKLOADS: dict[str, dict[str, list[Any]]] = {
    "poisson": {"rate_rps": [0.5, 3, 10], "zipf_exponent": [0.0, 2.0]},
    "synthetic": {"compression": [30, 300, 3000]},
    "closed_loop": {"concurrency": [4, 64]},
    "deterministic": {"prompt_tokens": [16, 4096, 20000], "output_tokens": [1, 500]},
}
OPTIONS: dict[str, list[Any]] = {
    "weights_start": ["disk"], "system.engines.residents": [1, 2, 5],
    "system.engines.kv_host_bytes": [0.0, 2e9, 50e9], "system.max_batch": [1, 4],
    "system.engines.bytes": [0.0, 3e9], "system.on_oom": ["fail"],
    "system.disaggregation.prompt_share": [0.3], "superchips": [2],
}  # fmt: skip


@st.composite
def overrides(draw: st.DrawFn) -> list[str]:
    kind = draw(st.sampled_from(["dense"] * 6 + ["mixture", "node"]))
    systems = {"dense": DENSE, "mixture": MIXTURES, "node": PAIRS}[kind]
    words = [f"system={draw(st.sampled_from(systems))}", "system.check_slo=false"]
    if kind == "node":
        words.append(f"node={draw(st.sampled_from(choices('node')))}")
    else:
        chip = draw(st.sampled_from(CHIPS))
        words += [f"hardware={chip}", f"mig={draw(st.sampled_from(load_platform(chip).layouts))}"]
        catalog = "moe" if kind == "mixture" else draw(st.sampled_from(CATALOGS))
        words.append(f"catalog={catalog}")
    workload = draw(st.sampled_from(sorted(WORKLOADS)))
    words.append(f"workload={workload}")
    for name, values in WORKLOADS[workload].items():
        words.append(f"workload.{name}={draw(st.sampled_from(values))}")
    for name, values in OPTIONS.items():
        if draw(st.integers(0, 3)) == 0:
            words.append(f"{name}={draw(st.sampled_from(values))}")
    requests = draw(st.integers(1, 40 if kind == "mixture" else 300))
    return [*words, f"workload.requests={requests}", f"seed={draw(st.integers(0, 99))}"]


@pytest.mark.soak
@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
@given(overrides())
def test_any_settings_are_refused_or_serve_every_request(words: list[str]) -> None:
    note(" ".join(words))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            found = simulate(build(load(words)))
        except SettingError:
            return
    told = found.summary
    assert told["finished"] + told["failed"] == told["requests"] > 0
    assert sum(told["failures"].values()) == told["failed"]
