"""Intervals over public engines and schedulers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from experiments.claims import Result, Row, claim, compare, fidelity_rows, load_claims, totals
from experiments.claims.fidelity import public
from experiments.claims.public import intervals_beside, public_interval
from experiments.claims.robust import under_all

RATIO = "c2cserve.fig9.qwen3_30b.ttft_vs_sllm"  # 3.0
BAND = "c2cserve.fig12.dense.sllm.ttft"  # 2 to 7 s


def row(name: str, ours: Any, others: dict[str, Any]) -> Row:
    item = claim(name)
    found = Result(
        claim_id=name, ours=ours, unit=item.unit, sample="out-of-sample", by_reading=others
    )
    return Row(claim=item, status="out-of-sample", result=found, comparison=compare(item, found))


def test_a_number_is_inside_between_the_lowest_and_the_highest() -> None:
    inside = row(RATIO, 0.05, {"a": 6.0, "b": 1.0})
    assert inside.public is not None
    assert (inside.public.low, inside.public.high) == ((0.05,), (6.0,))
    assert inside.public.is_inside
    assert inside.public.width == pytest.approx(120.0)
    assert public(inside) == "0.05 to 6, 1.2e+02 times: inside"
    outside = row(RATIO, 0.05, {"a": 2.9})
    assert outside.public is not None
    assert not outside.public.is_inside


def test_a_range_is_inside_if_both_ends_are() -> None:
    ends = row(BAND, [0.0, 3.0], {"a": [3.0, 8.0]})
    assert ends.public is not None
    assert ends.public.is_inside
    assert math.isinf(ends.public.width)
    one = row(BAND, [2.5, 3.0], {"a": [3.0, 8.0]})
    assert one.public is not None
    assert not one.public.is_inside


def test_without_alternatives_our_value_is_the_interval() -> None:
    lone = row(RATIO, 3.0, {})
    assert lone.public is not None
    assert lone.public.is_inside
    assert lone.public.width == 1.0


def test_other_systems_trends_and_in_sample_rows_have_none() -> None:
    name = "weaver.mem.weaver.qps"
    assert public_interval(claim(name), row(name, 1.0, {"a": 2.0}).result) is None
    trend = "c2cserve.fig9.moe.tpot_vs_sllm"
    assert row(trend, {"serverlessllm": True}, {}).public is None
    assert public_interval(claim(RATIO), None) is None


def test_chance_is_the_share_of_other_printed_values_of_the_unit() -> None:
    wide = [row(name, 0.01, {"a": 100.0}) for name in (
        RATIO, "c2cserve.fig9.qwen3_30b.ttft_vs_moeinf", "c2cserve.fig9.qwen3_30b.ttft_vs_finemoe"
    )]  # fmt: skip
    assert intervals_beside(wide) == {"numbers": 3, "inside": 3, "by_chance": 3.0, "outside": []}
    narrow = [*wide[:2], row("c2cserve.fig9.qwen3_30b.ttft_vs_finemoe", 7.0, {"a": 7.3})]
    found = intervals_beside(narrow)
    assert (found["inside"], found["by_chance"]) == (3, 2.0)
    assert intervals_beside([]) == {}


def test_totals_name_what_is_outside() -> None:
    results = [row(RATIO, 0.05, {}).result, row(BAND, [1.0, 3.0], {"a": [3.0, 8.0]}).result]
    rows = fidelity_rows(load_claims(), [r for r in results if r], frozenset())
    found = totals(rows)["public_intervals"]
    assert [*found] == ["c2cserve"]
    assert found["c2cserve"]["outside"] == [RATIO]


def test_combinations_are_of_the_readings_that_name_a_claim() -> None:
    asked = []

    def answers(engine: str, chunk: Any) -> list[Result]:
        asked.append((engine, chunk))
        item = claim(RATIO)
        other = claim("c2cserve.fig13.sllm_70b.after")
        return [
            Result(claim_id=RATIO, ours=float(len(asked)), unit=item.unit, sample="out-of-sample"),
            Result(claim_id=other.id, ours=0.4, unit=other.unit, sample="out-of-sample"),
        ]

    both, engines = under_all(answers, ("engine", "chunk"), "c2cserve")
    assert len(both.by_reading) == 3 * 3 - 1
    assert sorted(engines.by_reading) == ["engine=public_grace", "engine=public_x86"]
    assert asked[0] == ("gpu_bound", "table")
    pairs, _ = under_all(answers, ("engine", "chunk"), "c2cserve", together=1)
    assert len(pairs.by_reading) == 4
