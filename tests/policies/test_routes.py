"""The instance that takes a request, where instances are unlike or share devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from c2c.policies import ROUTE_DTYPE, EndsFirst, System, TogetherAtFirst, route


def table(*rows: dict[str, float]) -> Any:
    result = np.zeros(len(rows), ROUTE_DTYPE).view(np.recarray)
    result.kv_capacity = 100
    for k, row in enumerate(rows):
        for name, value in row.items():
            result[k][name] = value
    return result


def chosen(policy: Any, *rows: dict[str, float], tokens: int = 10) -> int:
    return int(route(policy, None, table(*rows), len(rows), tokens))


def test_the_one_that_ends_first_of_those_that_take_it() -> None:
    fast, slow = {"ends_s": 1.0, "outstanding": 9}, {"ends_s": 2.0}
    assert chosen(EndsFirst(), slow, fast) == 1
    assert chosen(EndsFirst(), slow, fast | {"draining": 1}) == 0
    assert chosen(EndsFirst(), slow, fast | {"kv_capacity": 9}) == 0
    assert chosen(EndsFirst(), slow, tokens=101) == -1
    assert EndsFirst().traits.reads_end_times
    assert not System(route=TogetherAtFirst()).traits.route.reads_end_times


def test_together_in_the_first_variant_and_apart_in_the_second() -> None:
    busy, idle = {"outstanding": 3}, {"outstanding": 1}
    assert chosen(TogetherAtFirst(), idle, busy) == 1
    assert chosen(TogetherAtFirst(), idle, busy | {"alpha": 1.0}) == 0
    assert chosen(TogetherAtFirst(), idle, busy | {"kv_capacity": 9}) == 0
    assert chosen(TogetherAtFirst(), {}, {"alpha": 1.0}) == 0  # nothing runs
