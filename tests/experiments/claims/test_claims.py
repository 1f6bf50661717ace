import json
from collections import Counter
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from c2c.errors import DataError, SettingError
from experiments.claims import (
    Claim,
    Improvement,
    Result,
    Row,
    claim,
    compare,
    fidelity_rows,
    fidelity_table,
    improvements_of,
    load_claims,
    predicate_holds,
    print_fidelity,
    print_summary,
    totals,
)
from experiments.claims.beside import members_of_orders, reasons_of_misses
from experiments.claims.load import read_claims


def made(value: Any, *, qualifier: str = "", unit: str = "x", kind: str = "ratio") -> Claim:
    return Claim(
        id="s.c", system="c2cserve", where="§1", says="", metric="m", value=value, unit=unit,
        kind=kind, how="analytic", conditions={"qualifier": qualifier} if qualifier else {},
    )  # fmt: skip


def result(ours: Any, **more: Any) -> Result:
    defaults: dict[str, Any] = {"claim_id": "s.c", "unit": "x", "sample": "out-of-sample"}
    return Result(ours=ours, **(defaults | more))


def test_every_claim_is_there_and_readable() -> None:
    claims = load_claims()
    assert len(claims) == 577
    assert Counter(c.system for c in claims.values()) == {
        "c2cserve": 146, "tessera": 127, "cocoserve": 125, "medusa": 99, "weaver": 80,
    }  # fmt: skip
    for item in claims.values():
        assert item.qualifier is not None
        assert item.says


def test_query_by_id_names_the_closest() -> None:
    assert claim("c2cserve.fig4b.sym.c2c_bytes").value == 5.37
    with pytest.raises(SettingError, match=r"fig4b\.sym\.c2c_bytes"):
        claim("c2cserve.fig4b.sym.c2c_byte")


@pytest.mark.parametrize(
    "text", ["a: 1", "- id: x", "[1, 2", "- {id: a, system: other, where: '', says: ''}"]
)
def test_bad_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(text)
    with pytest.raises(DataError):
        read_claims(path)


@pytest.mark.parametrize(
    ("published", "qualifier", "ours", "agrees"),
    [
        (10.0, "", 12.0, True),
        (10.0, "", 12.1, False),
        (10.0, "approx", 8.0, True),
        (10.0, "up_to", 14.0, False),
        (10.0, "at_least", 14.0, True),
        (10.0, "at_least", 9.9, False),
        (10.0, "less_than", 3.0, True),
        (10.0, "less_than", 10.0, False),
        (10.0, "at_most", 10.0, True),
        (10.0, "more_than", 10.0, False),
        (0, "", 0, True),
        (0, "", 1, False),
        ([2, 7], "", 5.0, True),
        ([2, 7], "", 1.7, True),
        ([2, 7], "", 9.0, False),
        ([2, 7], "", [3.0, 9.0], False),
        ({"a": 1.0, "b": [2, 3]}, "", {"a": 1.1, "b": 2.5}, True),
        ({"a": 1.0, "b": [2, 3]}, "", {"a": 1.1, "b": 5}, False),
        (True, "", True, True),
        (True, "", False, False),
        ({"order": ["x", "y"]}, "", {"order": ["y", "x"]}, False),
        ({"asym": "< sym"}, "", {"asym": 2.0, "sym": 1.0}, False),
    ],
)
def test_compare(published: Any, qualifier: str, ours: Any, agrees: bool) -> None:
    assert compare(made(published, qualifier=qualifier), result(ours)).agrees is agrees


@pytest.mark.parametrize(
    ("published", "ours", "agrees"),
    [
        (95, 96.0, True),
        (95, 93.9, False),  # 20% of 95 would reach down to 76
        (95, 100.0, False),
        (80, 84.0, True),
        (80, 84.1, False),
        (50, 40.0, True),
        (49, 58.0, True),  # below a half by the number itself
        (99.5, 98.5, True),
        ([61, 75], 79.0, True),
        ([61, 75], 81.0, False),
        ({"share": 83, "below": 20}, {"share": 90, "below": 20}, False),
    ],
)
def test_a_large_share_is_compared_by_what_it_lacks(
    published: Any, ours: Any, agrees: bool
) -> None:
    found = compare(made(published, unit="percent"), result(ours, unit="percent"))
    assert (found.agrees, found.within_20) == (agrees, agrees)
    gain = replace(made(published, unit="percent"), metric="throughput_gain")
    if published == 95:
        assert compare(gain, result(ours, unit="percent")).agrees


def test_worst_ratio_of_a_mapping_is_shown() -> None:
    found = compare(made({"a": 1.0, "b": 1.0, "c": 1.0}), result({"a": 1.1, "b": 0.5, "c": 1.9}))
    assert found.ratio == 0.5
    assert found.within_20 is False


def test_a_bound_can_agree_without_being_close() -> None:
    found = compare(made(95, qualifier="at_least"), result(200.0))
    assert (found.agrees, found.within_20) == (True, False)


@pytest.mark.parametrize("ours", ["fast", None, float("nan"), True, {"a": 1}])
def test_wrong_shape_is_an_error(ours: Any) -> None:
    with pytest.raises(SettingError):
        compare(made(1.0), result(ours))


def test_other_claim_or_unit_is_an_error() -> None:
    with pytest.raises(SettingError, match="unit"):
        compare(made(1.0), result(1.0, unit="ms"))
    with pytest.raises(SettingError, match="claim_id"):
        compare(made(1.0), result(1.0, claim_id="s.d"))


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e3))
def test_ratio_does_not_depend_on_the_scale(published: float, factor: float) -> None:
    ours = published * factor
    assert compare(made(published), result(ours)).ratio == pytest.approx(factor)


@pytest.mark.parametrize(
    ("predicate", "ours", "holds"),
    [
        ("increasing in N", [1, 2, 3], True),
        ("increasing in N", [1, 1, 1], False),
        ("increasing in N", [1, 3, 2], False),
        ("decreasing in M", [3, 2, 2], True),
        ("monotone non-decreasing in alpha", [1, 1, 1], True),
        ("monotone non-increasing in alpha", [1, 1, 2], False),
        ("~= 1", 1.1, True),
        ("~= 1", 1.4, False),
        ("asym < sym", {"asym": 1, "sym": 2}, True),
        ("asym > sym", {"asym": 1, "sym": 2}, False),
        ("low for small M,N", True, True),
    ],
)
def test_predicates(predicate: str, ours: Any, holds: bool) -> None:
    assert predicate_holds(predicate, "k", {"k": ours}) is holds


def test_relative_speed_of_two_series() -> None:
    ours = {"solo": [10.0, 8.0], "corun": [10.0, 5.0]}
    assert predicate_holds("decreasing faster than solo", "corun", ours)
    assert not predicate_holds("decreasing faster than corun", "solo", ours)
    assert not predicate_holds("increasing slower than solo", "corun", ours)


@pytest.mark.parametrize("ours", [{"k": 1.0}, {}, {"k": [1.0]}, {"k": "yes"}])
def test_predicates_without_what_they_need(ours: dict[str, Any]) -> None:
    for text in ("increasing in N", "< sym", "prettier"):
        with pytest.raises(SettingError):
            predicate_holds(text, "k", ours)


def test_fitted_claims_are_never_counted_as_reproduced() -> None:
    claims = load_claims()
    answers = [
        Result(claim_id="c2cserve.fig4b.sym.c2c_bytes", ours=5.37, unit="GB",
               sample="out-of-sample"),
        Result(claim_id="c2cserve.fig4b.asym.c2c_bytes", ours=0.13, unit="GB",
               sample="out-of-sample"),
    ]  # fmt: skip
    rows = fidelity_rows(claims, answers, frozenset({"c2cserve.fig4b.sym.c2c_bytes"}))
    status = {r.claim.id: r.status for r in rows}
    assert status["c2cserve.fig4b.sym.c2c_bytes"] == "in-sample"
    assert status["c2cserve.fig4b.asym.c2c_bytes"] == "out-of-sample"
    found = totals(rows)
    assert found["out_of_sample"]["numbers"] == found["in_sample"]["numbers"] == 1
    counted = [
        found[s]
        for s in (
            "out-of-sample", "in-sample", "identity", "explained", "not-yet", "not-applicable",
        )
    ]  # fmt: skip
    assert sum(counted) == found["claims"] == 577


def test_what_is_out_of_sample_is_counted_by_paper() -> None:
    answers = [
        Result(claim_id=name, ours=ours, unit=unit, sample="out-of-sample")
        for name, ours, unit in (
            ("c2cserve.fig4b.asym.c2c_bytes", 0.134, "GB"),
            ("c2cserve.fig9.dense.tpot_vs_aegaeon", 0.1, "x"),
            ("medusa.fig7a.vs_vllm", 42.0, "percent"),
            ("medusa.abstract.loading_reduction", 42.0, "percent"),
        )
    ]
    answers.append(
        Result(claim_id="c2cserve.fig4b.sym.c2c_bytes", ours=5.37, unit="GB", sample="identity")
    )
    found = totals(fidelity_rows(load_claims(), answers, frozenset()))
    by_system = found["out_of_sample_by_system"]
    assert [*by_system] == ["c2cserve", "medusa"]
    assert [t["numbers"] for t in by_system.values()] == [2, 1]
    assert [t["numbers_within_20"] for t in by_system.values()] == [1, 1]
    assert found["repeats"]["numbers"] == 1
    assert [t["agree"] for t in found["null_models"].values()] == [1, 1]


def test_a_band_agrees_end_by_end_and_one_number_within_it() -> None:
    band = made([2.0, 10.0])
    assert compare(band, result([1.7, 11.0])).agrees
    assert not compare(band, result([4.0, 5.0])).agrees  # inside, and another band
    assert compare(band, result([4.0, 5.0])).ratio == 2.0
    assert not compare(band, result([2.0, 13.0])).agrees
    for one, agrees in ((4.0, True), (1.7, True), (1.5, False), (12.0, True), (12.5, False)):
        assert compare(band, result(one)).agrees is agrees


def test_table_holds_all_claims_and_prints() -> None:
    answer = Result(claim_id="c2cserve.fig4a.mig7.asym_slower", ours={"asym": 5.0, "sym": 2.0},
                    unit="relation", sample="out-of-sample")  # fmt: skip
    order = Result(claim_id="c2cserve.fig14.order", ours={"order": ["alpha", "chunk", "placement"]},
                   unit="relation", sample="out-of-sample")  # fmt: skip
    rows = fidelity_rows(load_claims(), [answer, order], frozenset())
    table = fidelity_table(rows)
    assert table.num_rows == 577
    json.dumps([r.as_dict() for r in rows], allow_nan=False)
    console = Console(record=True, width=160, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    print_fidelity(rows, console)
    text = console.export_text()
    assert "asym_slower" in text
    assert "577 claims" in text
    assert "[chunk, placement, alpha]" in text  # not taken for rich's markup
    console.file.close()


def test_the_summary_has_a_line_a_paper_and_no_claims() -> None:
    def say(*ids: str) -> list[str]:
        console = Console(record=True, width=80, file=StringIO())
        ours = [
            Result(claim_id=i, ours=1e6, unit=load_claims()[i].unit, sample="out-of-sample")
            for i in ids
        ]
        print_summary(fidelity_rows(load_claims(), ours, frozenset()), console)
        return [line.strip() for line in console.export_text().splitlines()]

    head, first, left = say("c2cserve.fig13.aegaeon.after")
    assert head.split("  ")[0] == "paper"
    assert first.split() == ["C2CServe", "0", "of", "1", "0", "of", "0", "0", "of", "0"]
    assert left.endswith(" more claims have no result here")
    _, *papers, _ = say("c2cserve.fig13.aegaeon.after", "weaver.fig7a.gpu_control_cold")
    assert [line.split()[:4] for line in papers] == [
        ["C2CServe", "0", "of", "1"], ["WEAVER", "0", "of", "1"], ["all", "0", "of", "2"],
    ]  # fmt: skip
    assert say() == ["no figure here answers a claim of a paper"]


def test_result_for_an_unknown_claim() -> None:
    with pytest.raises(SettingError, match="claim"):
        fidelity_rows(load_claims(), [result(1.0)], frozenset())


def test_a_trend_must_hold_with_every_seed() -> None:
    item = made({"asym": "< sym"}, unit="relation", kind="trend")
    middle = {"asym": 1.0, "sym": 2.0}
    sure = [{"asym": 0.9, "sym": 1.8}, {"asym": 1.1, "sym": 2.2}]
    found = compare(item, result(middle, unit="relation", by_seed=sure))
    assert found.agrees
    assert not found.in_band
    unsure = [*sure, {"asym": 2.1, "sym": 2.0}]
    found = compare(item, result(middle, unit="relation", by_seed=unsure))
    assert not found.agrees
    assert found.in_band
    # a number is compared by its middle, whatever single seeds give
    assert compare(made(2.0), result(2.1, by_seed=[1.0, 2.1, 9.0])).agrees


def test_a_mean_over_models_counts_only_if_each_model_agrees() -> None:
    item = made(2.58)
    sure = compare(item, result(2.5, by_model={"a": 2.4, "b": 2.6}))
    assert sure.agrees
    assert sure.within_20
    unsure = compare(item, result(2.55, by_model={"a": 0.1, "b": 5.0}))
    assert (unsure.agrees, unsure.within_20, unsure.apart) == (False, False, ("a", "b"))
    assert unsure.ratio == pytest.approx(2.55 / 2.58)
    assert compare(item, result(9.0, by_model={"a": 9.0})).apart == ()  # a miss needs no more


def test_means_of_fig13_name_their_models() -> None:
    name = "c2cserve.fig13.finemoe.before"
    answer = Result(claim_id=name, ours=2.6, unit="s", sample="out-of-sample",
                    by_model={"mixtral-8x7b": 0.3, "qwen3-30b-a3b": 4.9})  # fmt: skip
    (row,) = (r for r in fidelity_rows(load_claims(), [answer], frozenset()) if r.claim.id == name)
    assert row.is_miss
    assert row.why
    assert "mixtral-8x7b, qwen3-30b-a3b alone do not agree" in row.note
    assert totals([row])["out_of_sample"]["numbers_within_20"] == 0


def test_an_order_counts_only_if_its_members_do() -> None:
    order, sizes = "c2cserve.fig14.order", {"default_chunk": 2.83, "random_placement": 1.94}
    answers = [
        Result(claim_id=order, ours={"order": ["chunk", "placement", "alpha"]}, unit="relation",
               sample="out-of-sample"),
        *(Result(claim_id=f"c2cserve.fig14.{name}.ratio", ours=value, unit="x",
                 sample="out-of-sample") for name, value in sizes.items()),
    ]  # fmt: skip

    def row_with(static: float) -> Row:
        last = Result(claim_id="c2cserve.fig14.static_gemm.ratio", ours=static, unit="x",
                      sample="out-of-sample")  # fmt: skip
        rows = fidelity_rows(load_claims(), [*answers, last], frozenset())
        return next(r for r in rows if r.claim.id == order)

    assert row_with(1.48).agrees
    missed = row_with(0.9)
    assert missed.comparison is not None
    assert missed.comparison.agrees
    assert missed.is_miss
    assert "c2cserve.fig14.static_gemm.ratio do not agree" in missed.note
    assert totals([missed])["out_of_sample"]["trends_agree"] == 0


def test_what_stands_beside_the_claims_is_of_claims() -> None:
    assert len(members_of_orders()["c2cserve.fig14.order"]) == 3
    for name, why in reasons_of_misses().items():
        assert name in load_claims()
        assert why.endswith(".")


def test_holes_and_stale_reasons_are_told_by_name() -> None:
    missed, hit = "c2cserve.fig13.aegaeon.after", "c2cserve.fig13.aegaeon.before"
    hole = "c2cserve.fig14.full.p99_ttft"
    assert {missed, hit} <= set(reasons_of_misses())
    assert hole not in reasons_of_misses()
    values = {missed: 0.05, hit: 0.48, hole: 9.0}
    answers = [Result(claim_id=name, ours=ours, unit="s", sample="out-of-sample")
               for name, ours in values.items()]  # fmt: skip
    rows = fidelity_rows(load_claims(), answers, frozenset())
    found = totals(rows)["misses"]
    assert (found["all"], found["with_a_reason"]) == (2, 1)
    assert (found["without_a_reason"], found["reasons_of_hits"]) == ([hole], [hit])
    console = Console(record=True, width=160, file=StringIO())
    print_fidelity(rows, console)
    text = console.export_text()
    assert f"missed without a reason in misses.yaml: {hole}" in text
    assert f"but ours agrees here: {hit}" in text


@pytest.mark.parametrize(
    ("ours", "base", "better", "verdict"),
    [
        ([1.0, 1.1], [2.0, 1.2], "less", "better"),
        ([1.0, 1.3], [2.0, 1.2], "less", "no difference"),
        ([1.0, 1.1], [2.0, 1.2], "more", "worse"),
        ([1.0], [2.0], "less", "better, one seed"),
        ([1.0], [1.0], "less", "no difference"),
        ([1.0 + 1e-13, 1.0 + 2e-13], [1.0, 1.0], "more", "no difference"),
    ],
)
def test_improvements_are_larger_than_what_seeds_change(
    ours: list[float], base: list[float], better: Any, verdict: str
) -> None:
    one = Improvement(what="TTFT", unit="s", better=better, ours="a", base="b",
                      ours_by_seed=ours, base_by_seed=base)  # fmt: skip
    assert one.verdict == verdict


def test_improvements_compare_the_same_seeds() -> None:
    rows = [{"system": s, "seed": i, "ttft_s": v + i} for s, v in (("a", 1.0), ("b", 2.0))
            for i in (1, 0)]  # fmt: skip
    there = [row | {"ttft_s": 0.0, "at": "there"} for row in rows]
    columns: Any = {"ttft_s": ("TTFT", "s", "less")}
    one, other = improvements_of([*rows, *there], [("a", "b"), ("a", "c")], columns,
                                 where=lambda r: str(r.get("at", "here")))  # fmt: skip
    assert one.gains == (1.0, 1.0)
    assert (one.ours_by_seed, one.what) == ([1.0, 2.0], "TTFT, here")
    assert (other.gains, other.what) == ((0.0, 0.0), "TTFT, there")
    with pytest.raises(SettingError, match="ours_by_seed"):
        Improvement(what="", unit="", better="less", ours="", base="", ours_by_seed=[1.0],
                    base_by_seed=[])  # fmt: skip
