"""MuxServe: placement by rates, shares of SMs, one room for KV caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.config import build, load, simulate
from c2c.systems.muxserve import Served, placed
from c2c.systems.muxserve.placement import share_of

GB = 1e9


def served(name: str, rate_rps: float, gb: float = 10.0, step_s: float = 0.01) -> Served:
    """Return a model whose steps of 1 to 8 requests take as long, and twice on half of the SMs."""
    steps = np.full(8, step_s)
    return Served(
        name=name, rate_rps=rate_rps, output_tokens=100, weight_bytes=gb * GB,
        request_bytes=GB, prompt_s=1.0, decode_s={0.5: 2.0 * steps, 1.0: steps},
    )  # fmt: skip


def _room(models: Any) -> float:
    return float(40.0 * GB - sum(m.weight_bytes for m in models))


def test_the_smallest_share_that_serves_the_rate_by_hand() -> None:
    # 8 requests a batch: 8 / (1 + 100 x 0.02) = 2.67 a second on half of the SMs, 4 on all.
    assert served("a", 1.0).most_rps(0.5, 8 * GB, 1.0) == pytest.approx(8 / 3)
    assert [share_of(served("a", rate), 8 * GB) for rate in (2.6, 3.0, 5.0)] == [0.5, 1.0, 1.0]
    assert served("a", 1.0).most_rps(0.5, 1.5 * GB, 1.0) == pytest.approx(1 / 3)  # of one request
    assert served("a", 1.0).most_rps(0.5, 0.5 * GB, 1.0) == 0.0


def test_busy_models_are_apart_and_idle_ones_beside_them() -> None:
    models = [served("idle", 0.1), served("busy", 2.0), served("busy 2", 1.9)]
    gpus, _ = placed(models, 2, _room)
    assert [[m.name for m in here] for here in gpus] == [["busy"], ["busy 2", "idle"]]


@given(
    st.lists(st.tuples(st.floats(0.01, 10.0), st.floats(1.0, 50.0)), min_size=1, max_size=12),
    st.integers(1, 4),
)
def test_every_model_is_once_where_it_fits(sizes: list[tuple[float, float]], gpus: int) -> None:
    models = [served(str(k), rate, gb) for k, (rate, gb) in enumerate(sizes)]
    found, shares = placed(models, gpus, _room)
    names = [m.name for here in found for m in here]
    assert len(names) == len(set(names))
    assert all(_room(here) > 0.0 for here in found if here)
    assert set(shares) == {m.name for m in models}
    for model in models:
        if model.name not in names:  # no GPU has room for it beside others
            assert all(_room([*here, model]) <= 0.0 for here in found)


def run(*settings: str, compiled: bool = False) -> Any:
    own = ("hardware=h100_sxm", "workload=poisson", "workload.requests=60", *settings)
    return simulate(build(load([*own])), compiled=compiled)


def test_a_model_alone_on_all_sms_is_as_a_dedicated_one() -> None:
    one = ("catalog.name=one", "catalog.models=[{spec: llama-3-8b}]", "system.check_slo=false")
    whole = ("system.layout.decode_shares=[1.0]",)
    ours = run("system=muxserve", *one, *whole)
    theirs = run("system=dedicated", "system/batch=prompts_alone", *one)
    assert _tpot(ours) == pytest.approx(_tpot(theirs), rel=1e-3)
    assert _ttft(ours) == pytest.approx(_ttft(theirs), rel=1e-3)


@pytest.mark.slow
def test_both_forms_agree_and_neighbours_slow_each_other() -> None:
    settings = ("system=muxserve", "catalog=dense6", "superchips=2", "workload.rate_rps=20")
    interpreted, compiled = (run(*settings, compiled=form) for form in (False, True))
    assert interpreted.requests.equals(compiled.requests)
    apart = run(*settings[:2], "superchips=6", settings[3])
    assert _tpot(apart) < _tpot(interpreted)


def _tpot(result: Any) -> float:
    table = result.requests
    first, last = (table[f"{name}_s"].to_numpy() for name in ("first_token", "finished"))
    return float(np.mean((last - first) / np.maximum(1, table["output_tokens"].to_numpy() - 1)))


def _ttft(result: Any) -> float:
    table = result.requests
    return float(np.mean(table["first_token_s"].to_numpy() - table["arrival_s"].to_numpy()))
