"""Alpha, chunk and placement by prediction: pure functions with closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.cost import max_min
from c2c.errors import SettingError
from c2c.policies import (
    CANDIDATE_DTYPE,
    ByCost,
    Feedback,
    LeastPredicted,
    LeastStartTime,
    Predictive,
    Roofline,
    chunk_cost,
    chunk_tokens,
    largest_chunk,
    least_lost,
    place,
)
from c2c.policies.place import LoaderQueue

seconds = st.floats(1e-3, 1.0)
gigabytes = st.floats(0.0, 100.0)


def chosen(
    alone: list[float], gb: list[float], others: list[float], link: float, weight: float
) -> tuple[int, float]:
    demands = np.array([*others, 0.0])
    return least_lost(
        np.array(alone), 1e9 * np.array(gb), demands, len(others), link, weight,
        np.empty(len(demands)),
    )  # fmt: skip


@given(
    st.lists(st.tuples(seconds, gigabytes), min_size=1, max_size=5),
    st.lists(st.floats(0.0, 400.0), max_size=6),
    st.floats(1.0, 500.0),
    st.floats(0.0, 3.0),
)
def test_alpha_is_the_one_that_max_min_shares_predict_best(
    variants: list[tuple[float, float]], others: list[float], link: float, weight: float
) -> None:
    costs = []
    for alone, gb in variants:
        demands = np.array([*others, gb / alone])
        shares = max_min(demands, link)
        own = alone if gb == 0.0 else max(alone, gb / shares[-1])
        before = max_min(demands[:-1], link) if others else np.zeros(0)
        drawn = demands[:-1] > 0.0
        lost = float(np.sum((before - shares[:-1])[drawn] / demands[:-1][drawn]))
        costs.append(own * (1.0 + weight * lost))
    alone_s, gb_s = [v[0] for v in variants], [v[1] for v in variants]
    at, cost = chosen(alone_s, gb_s, others, link, weight)
    assert cost == pytest.approx(min(costs), rel=1e-9)
    assert costs[at] == pytest.approx(min(costs), rel=1e-9)


def test_alpha_leaves_the_link_to_those_who_need_it() -> None:
    alone, gb = [1.2, 1.0], [30.0, 100.0]
    assert chosen(alone, gb, [], 100.0, 1.0)[0] == 1  # nobody else: the fastest
    assert chosen(alone, gb, [40.0], 100.0, 0.0)[0] == 0  # its own share is not enough for it
    # Of a link that carries 120, the faster variant leaves 60 of the 80 that another needs.
    alone, gb = [1.02, 1.0], [30.0, 60.0]
    assert chosen(alone, gb, [80.0], 120.0, 0.0)[0] == 1
    assert chosen(alone, gb, [80.0], 120.0, 1.0)[0] == 0


def test_the_horizon_recedes_only_with_the_predictive_one() -> None:
    assert Predictive(horizon=3).traits.horizon_steps == 3
    assert Roofline().traits.horizon_steps > 1 << 40 < Feedback().traits.horizon_steps
    assert Predictive(others=2.0).traits.others_weight == 2.0
    assert Roofline().traits.others_weight == 0.0
    assert Predictive().traits.knows_costs


def cost(**given: Any) -> float:
    values = {"seconds": 0.1, "steps": 4, "prompts": 1, "decodes": 0, "decode_s": 0.02,
              "ttft_slo_s": 1.0, "tpot_slo_s": 0.1}  # fmt: skip
    return float(chunk_cost(ByCost(response_tokens=100), *(values | given).values()))


def test_a_chunk_costs_its_prompts_wait_and_its_decodes_lateness() -> None:
    assert cost() == pytest.approx(0.25)  # half of five steps of 0.1 s, of 1 s
    assert cost(prompts=3, steps=1) == pytest.approx(0.3)
    assert cost(decodes=2) == pytest.approx(0.25 + 2 * 4 * 0.08 / 10.0)
    # Weights are read once a step: where that is all that a step takes, the largest is best.
    assert cost(steps=1) < cost(steps=2)
    # Where the tokens take the time, small chunks let the first prompts out sooner.
    assert cost(prompts=4, steps=4, seconds=0.1) < cost(prompts=4, steps=1, seconds=0.4)
    # Steps no longer than decoding alone delay no decode.
    assert cost(decodes=9, seconds=0.01) == cost(decodes=0, seconds=0.01)


def test_sizes_that_are_weighed() -> None:
    policy = ByCost(smallest=256, largest=2048)
    assert policy.traits.smallest_chunk == 256
    assert chunk_tokens(policy, 512, 9000, 3) == largest_chunk(policy, (128,)) == 2048


def candidates(*rows: dict[str, Any]) -> Any:
    table = np.zeros(len(rows), CANDIDATE_DTYPE).view(np.recarray)
    for k, row in enumerate(rows):
        values = {"is_free": 1, "in_host": 1, "kv_capacity": 9000, "link_left_gbps": 400.0,
                  "budget_gbps": 400.0, "prompt_s": 1e-4, "decode_s": 0.01} | row  # fmt: skip
        for name, value in values.items():
            table[name][k] = value
    return table


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([{}, {"prompt_s": 5e-5}], 1),  # a larger slice
        ([{"prompt_s": 5e-5, "link_left_gbps": -700.0}, {}], 1),  # whose link is thrice promised
        ([{}, {"prompt_s": 9e-5, "link_left_gbps": 100.0}], 1),  # all of whose link is promised
        ([{"prompt_s": 9e-5, "in_host": 0}, {}], 1),
        ([{"is_free": 0}, {}], 1),
        ([{"last_used_s": 2.0}, {"last_used_s": 1.0}], 1),
        ([{"is_resident": 1}, {"kv_capacity": 10}], -1),
    ],
)
def test_placement_by_predicted_time(rows: list[dict[str, Any]], best: int) -> None:
    table = candidates(*rows)
    assert place(LeastPredicted(), (), table, len(rows), 1000, 100.0, 0) == best


@pytest.mark.parametrize(("until_s", "best"), [(5.0, 0), (12.0, 1)])
def test_a_start_waits_for_what_is_queued_and_gains_nothing_by_what_is_over(
    until_s: float, best: int
) -> None:
    rows = [{"chip": c, "is_free": 1 - c, "now_s": 10.0, "weight_bytes": 1e9} for c in (0, 1)]
    table, own = candidates(*rows), LoaderQueue(np.array([until_s, 0.0]))
    assert place(LeastStartTime(link_gbps=100.0), own, table, 2, 1000, 100.0, 0) == best
    assert own.until_s[best] == pytest.approx(10.01)


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (Predictive(initial=2.0), "initial"),
        (Predictive(others=-1.0), "others"),
        (Predictive(horizon=0), "horizon"),
        (ByCost(smallest=0), "smallest"),
        (ByCost(smallest=512, largest=256), "smallest"),
        (LeastPredicted(cold_s=-1.0), "cold_s"),
    ],
)
def test_settings_that_cannot_work(policy: Any, field: str) -> None:
    with pytest.raises(SettingError, match=f"here.{field}="):
        policy.check("here")
