"""Times of a woven pair."""

from __future__ import annotations

import numpy as np
import pytest

from c2c.cost.kernel_graph import Batch, timed_gpus
from c2c.errors import SettingError
from c2c.models import load_spec
from c2c.systems.weaver import Cut, Limits, Pair, expected_stall, payload_bytes, profile_of, woven

LLAMA = load_spec("llama-3-8b")


def pair(ratio: float, rows: int = 100, gpu: str = "a100_40", gbps: float = 100.0) -> Pair:
    return profile_of(
        LLAMA, load_spec("llama-3-3b"), timed_gpus(gpu, gpu),
        batches=(Batch(rows=rows, chunk=1, context=1000), Batch(rows=8, chunk=1, context=500)),
        ratio=ratio, wire_s=(2e-6, 2e-6), gbps=gbps,
    )  # fmt: skip


def test_payload_by_shape() -> None:
    assert payload_bytes(LLAMA) == (12_288, 8_192)


def test_ends_of_the_ratio() -> None:
    none, some, every = pair(0.0), pair(0.5), pair(1.0)
    assert (none.away, some.away, every.away) == (0, 50, 100)
    assert none.away_s == none.wire_s == every.local_s == 0
    assert some.local_s == some.away_s
    assert every.away_s == none.local_s
    assert some.wire_s == pytest.approx(4e-6 + 50 * 20_480 / 100e9)
    assert some.slack_s == -some.wire_s
    assert none.rest_s == some.rest_s == every.rest_s
    whole = Cut(pieces=tuple((t,) for t in none.ops))
    alone = woven(none, whole, 2e-6)
    assert alone.stall_s == 0
    assert alone.hot_s == none.iteration_s
    assert alone.cold_s == sum(none.ops)


def test_steps_grow_by_stalls_attention_and_polls() -> None:
    p = pair(0.45)
    whole = Cut(pieces=tuple((t,) for t in p.ops))
    found = woven(p, whole, 2e-6)
    assert found.stall_s == expected_stall(p.ops, p.slack_s) > 0
    assert found.hot_s == p.iteration_s + 32 * found.stall_s
    assert found.cold_s == pytest.approx(sum(p.ops) + 2e-6 * len(p.ops) + 32 * p.away_s)


def test_only_products_and_attention_are_cut() -> None:
    p = pair(0.45)
    most = dict(zip(p.kinds, p.most, strict=True))
    assert most["head"] == 128_256 // 128
    assert most["attention"] == 8
    assert most["norm1"] == most["argmax"] == 1
    assert max(p.limits(Limits(most=6)).most_of(np.array(p.ops))) == 6
    with pytest.raises(SettingError, match=r"^ratio=1\.2"):
        pair(1.2)
