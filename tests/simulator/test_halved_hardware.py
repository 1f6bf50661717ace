"""Half the link, twice the link, twice the cache: what each baseline's requests take then."""

from __future__ import annotations

import numpy as np
import pytest

from c2c.config import build, load
from tests.simulator.worlds import requests, simulate
from tests.tiers import tiered

# Requests far apart, of two models in turn: nobody waits for another, so that a link of half the
# rate makes nothing take more than twice as long.
DENSE = requests(np.arange(6) * 1000.0, np.arange(6) % 2, prompt=600, output=12)
MIXTURE = requests([0.0], prompt=4, output=12)

LINK_DECIDES = (
    "serverlessllm", "serverlessllm_fast", "vllm_sleep",
    "serverlessllm_hybrid", "aegaeon", "aegaeon_hybrid", "layer_staging", "c2cserve_letter",
)  # fmt: skip
# Held, since C2CServe's rule takes a larger chunk where the link is slower, and that reads the
# weights less often: a prompt of 600 tokens on a slice of 12 GB takes 0.94 s, and 0.89 s with half.
CHUNK = ("system/chunk=fixed", "system.chunk.tokens=1024")
# Alone it exceeds HBM; the host's work for each expert would hide what the link does.
MIXTRAL = (
    "catalog.models=[{spec: mixtral-8x7b, ttft_slo_s: 1.0, tpot_slo_s: 0.8}]",
    "workload.models=1",
    "system.expert_cache.host_s=0",
)
CACHES = ("moe_infinity", "moe_infinity_code", "moe_infinity_hybrid", "finemoe", "finemoe_hybrid")


def latencies(*words: str) -> np.ndarray:
    """Return the seconds of each request to its end, of mixtures without their start."""
    mixtures = any(w.removeprefix("system=") in CACHES for w in words)
    catalog = MIXTRAL if mixtures else ("catalog=dense", "workload.models=2")
    words = (
        *catalog, "workload=poisson", "workload.requests=100", "system.check_slo=false", *CHUNK,
        *words,
    )  # fmt: skip
    what = build(load(list(words)))
    block = MIXTURE if mixtures else DENSE
    records, _, _ = simulate(what.prepared, block)
    assert (records.failure == 0).all()
    since_s = records.started_s if mixtures else records.arrival_s  # a start reads 93 GB
    seconds: np.ndarray = records.finished_s - since_s
    return seconds


@pytest.mark.slow
@pytest.mark.parametrize("system", LINK_DECIDES + CACHES)
def test_the_link_is_felt_in_proportion_at_most(system: str) -> None:
    half, same, twice = (latencies(f"system={system}", f"scale.link={x}") for x in (0.5, 1.0, 2.0))
    for slow, fast in ((half, same), (same, twice)):
        assert (slow >= fast * (1 - 1e-9)).all()
        assert (slow <= 2.0 * fast * (1 + 1e-9)).all()
    assert half.sum() > 1.001 * same.sum()  # a slice may draw no more of a faster link


@pytest.mark.parametrize("system", ["dedicated", "mig_resident"])
def test_what_is_resident_from_the_start_does_not_ask_the_link(system: str) -> None:
    words = (f"system={system}", "mig=2x48gb")
    half, same = (latencies(*words, f"scale.link={x}") for x in (0.5, 1.0))
    assert half.tobytes() == same.tobytes()
    fast = latencies(*words, "scale.hbm=2")
    assert (fast < same).all()
    assert (fast >= 0.5 * same).all()


@pytest.mark.parametrize("system", tiered(CACHES))
def test_twice_the_cache_takes_less_time(system: str) -> None:
    (little,), (much,) = (
        latencies(f"system={system}", f"system.expert_cache.share={share}") for share in (0.35, 0.7)
    )
    assert much < little
