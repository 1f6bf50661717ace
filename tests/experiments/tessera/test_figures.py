"""Tessera's figures' duties, beside what their own results say."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.systems.tessera import WAYS, load_pair
from experiments.figure import Computed, choose
from experiments.papers.tessera import (
    drawing,
    heterogeneity,
    network,
    offline,
    online,
    pairs_online,
    pipelining,
    switching,
)
from experiments.papers.tessera.arrivals import of_trace, poisson
from experiments.papers.tessera.workloads import PAIRS, WORKLOADS, fitted_share
from tests.experiments.duties import QUICK, check_answers, check_misses, claims_without_answer
from tests.tiers import tiered

DRAW = {heterogeneity: drawing.draw_heterogeneity, pipelining: drawing.draw_pipelining}
# Whose claims figures answer that cost seconds; here their parts are tested.
SIMULATED = (
    "fig7.*", "fig8?.vs_*", "fig10.*", "fig11*", "intro.slo_requests", "sec3b.kernels_typical",
    "sec3b.solve_time",
)  # fmt: skip


@cache
def computed(module: ModuleType) -> Computed:
    result: Computed = module.compute(QUICK)
    return result


def settings(name: str) -> Any:
    """The experiment of a figure of Tessera."""
    return choose(f"tessera.{name}")[0].settings(QUICK)


@cache
def cells() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """One workload of Fig. 6 for all pairs, standing for all."""
    rows = [
        {**row, "workload": name}
        for pair in PAIRS
        for row in offline._cell(settings("fig6"), pair, "llama-3-8b")
        for name in WORKLOADS
    ]
    return rows, [offline._mean(rows, pair, way) for pair in PAIRS for way in WAYS]


@pytest.mark.parametrize("module", tiered(DRAW), ids=lambda m: m.__name__.split(".")[-1])
def test_a_figure_is_drawn(module: ModuleType) -> None:
    figure = computed(module)
    assert DRAW[module](dict(figure.tables), figure.caption).axes
    check_answers(figure)  # in the paper's own units


def test_misses_of_shares_of_kernels_have_reasons_and_hits_have_none() -> None:
    check_misses(computed(heterogeneity).results, least=4)


def test_the_three_fitted_numbers_are_what_they_were_fitted_to() -> None:
    for pair in PAIRS:
        assert load_pair(pair).right_share == pytest.approx(fitted_share(pair), abs=6e-4)


@pytest.mark.slow
def test_more_in_flight_and_fewer_transfers_fill_the_gpus() -> None:
    rows = {
        (r["plan"], r["mode"], r["in_flight"]): r["percent"]
        for r in computed(pipelining).tables["shares"].to_pylist()
    }
    plans = {plan for plan, _, _ in rows}
    assert len(plans) == 3
    for plan in plans:
        assert rows[plan, "none", 1] < 51  # two balanced GPUs by turns
        for n in (4, 8):
            assert rows[plan, "none", 1] < min(rows[plan, m, n] for m in ("naive", "priority"))
        # the shortest first keeps the other GPU busy under any plan, the oldest first only where
        # groups are short or few
        assert max(rows[plan, m, 4] for m in ("naive", "priority")) < rows[plan, "shortest", 4]
    for n in (4, 8):
        for plan in plans - {"transfers at a price"}:
            assert rows[plan, "naive", n] < rows[plan, "priority", n]
        assert rows["rehearsed", "priority", n] == max(rows[p, "priority", n] for p in plans)
    assert max(rows.values()) <= 100


def test_replicas_stand_beside_every_way() -> None:
    rows, means = cells()
    for mean in means:
        mine = [r["relative"] for r in rows if (r["pair"], r["way"]) == (mean["pair"], mean["way"])]
        assert mean["relative"] == pytest.approx(sum(mine) / len(mine))
    found = {(m["pair"], m["way"]): m for m in means}
    for pair in PAIRS:
        apart = found[pair, "replicas"]
        alone = found[pair, "left"]["relative"] + found[pair, "right"]["relative"]
        assert apart["relative"] == pytest.approx(alone)
        assert found[pair, "kernels"]["relative"] <= found[pair, "limit"]["relative"]
        assert apart["published_for_price"] > max(
            found[pair, way]["published_for_price"] for way in ("prefill_decode", "attention_ffn")
        )
    results = offline._results(rows, means)
    noted = [r for r in results if r.claim_id.endswith((".pd", ".af", ".tessera"))]
    assert len(noted) == 9
    assert all("Two GPUs apart" in r.note for r in noted)
    in_sample = {r.claim_id for r in results if r.sample == "in-sample"}
    assert in_sample == {f"tessera.table3.{pair}.homo_right" for pair in PAIRS}


def test_without_the_trace_requests_have_its_medians() -> None:
    drawn = poisson(QUICK, 10.0, 50)
    assert set(drawn.prompt_tokens) == {1020}
    assert set(drawn.output_tokens) == {129}
    assert np.array_equal(drawn.arrival_s, poisson(QUICK, 10.0, 50).arrival_s)
    bursts = of_trace(QUICK, 120.0, 10.0)
    assert (np.diff(bursts.arrival_s) >= 0.0).all()
    assert not np.array_equal(bursts.arrival_s[:9], of_trace(QUICK, 120.0, 10.0, 1).arrival_s[:9])
    assert 0.5 * 1200 < len(bursts) < 2 * 1200


@pytest.mark.slow
def test_ways_online_are_told_apart() -> None:
    light = poisson(QUICK, 0.5, 20)
    found = {way: pairs_online.latency_s("a100_l40s", way, light)
             for way in (*pairs_online.ONLINE, "light")}  # fmt: skip
    assert found["light"] <= found["left"] * 1.001
    assert found["af"] > found["tessera"]
    assert found["tessera"] == pytest.approx(found["light"], rel=0.05)


@pytest.mark.slow
def test_every_claim_of_the_paper_is_answered_or_explained() -> None:
    answered = {r.claim_id for module in DRAW for r in computed(module).results}
    answered |= {r.claim_id for r in offline._results(*cells())}
    assert not claims_without_answer("tessera", answered, SIMULATED)


def test_the_rate_at_a_target_lies_between_points() -> None:
    assert online._rate_at([(1.0, 0.01), (2.0, 0.04), (4.0, 0.08)], 0.05) == pytest.approx(2.5)
    assert online._rate_at([(1.0, 0.01), (2.0, 0.04)], 0.05) is None
    assert online._rate_at([(1.0, 0.06), (2.0, 0.09)], 0.05) == 1.0
    rows = [
        {
            "pair": p, "way": w, "load": 0.1, "rate_rps": 9.0,
            "per_token_s": 0.012 if w == "pd" else 0.01,
        }
        for p in PAIRS
        for w in pairs_online.ONLINE
    ]  # fmt: skip
    rates = [
        {"pair": p, "way": w, "rate_rps": 3.0 if w == "tessera" else 2.0}
        for p in PAIRS
        for w in pairs_online.ONLINE
    ]
    found = {r.claim_id.removeprefix("tessera."): r for r in online._results(rows, rates)}
    assert found["fig7.low_vs_pd"].ours == pytest.approx(1.2)
    assert found["fig7.rate_at_slo"].ours == found["intro.slo_requests"].ours == 1.5
    assert "apart: 1.50." in found["fig7.rate_at_slo"].note
    never = [{**r, "rate_rps": None} if r["way"] == "pd" else r for r in rates]
    assert online._results(rows, never)[2].ours == pytest.approx(3 / 9)


@pytest.mark.parametrize(("end_s", "is_u"), [(0.03, True), (0.01, False)])
def test_a_u_shape_is_worse_at_both_ends(end_s: float, is_u: bool) -> None:
    rows = [
        {
            "varied": name,
            "value": v,
            "per_token_s": 0.02 if v in (0.3, 1.5) else end_s,
            "worst_s": 3.0,
        }
        for name, values in (("window", (0.03, 0.3, 1.5)), ("threshold", (1.1, 1.5, 3.0)))
        for v in values
    ]
    rows[2]["per_token_s"] = end_s  # a window of 1.5 s is an end, a threshold of 1.5 the middle
    rows += [
        {"varied": name, "value": 0.0, "per_token_s": 0.025, "worst_s": 6.0}
        for name in ("latency only", "throughput only", "two GPUs apart")
    ]
    found = {r.claim_id: r.ours for r in switching._results(rows, settings("fig10"))}
    assert found["tessera.fig10.u_shape"]["shape"] is is_u
    assert found["tessera.fig10.u_shape"]["minimum"] is is_u
    assert "0.50 of the worse" in switching._results(rows, settings("fig10"))[0].note
    assert found["tessera.fig10.aggressive_penalty"] == pytest.approx(end_s / 0.02)


def test_a_pair_and_a_workload_of_a_figure_are_chosen() -> None:
    chosen = ("experiment.pairs=[h100_rtx]", "experiment.workloads=[gpt-oss-20b]")
    figure = offline.compute(replace(QUICK, overrides=chosen))
    cells = figure.tables["cells"].to_pylist()
    assert {(r["pair"], r["workload"]) for r in cells} == {("h100_rtx", "gpt-oss-20b")}
    assert figure.results == ()  # claims are of all pairs and workloads
    relative = {r["way"]: r["relative"] for r in cells}
    assert f"{relative['kernels']:.2f} times the left GPU alone" in figure.finding
    assert drawing.draw_offline(dict(figure.tables), figure.caption).axes
    with pytest.raises(SettingError, match=r"experiment\.window_s=0\.5: expected one of"):
        choose("tessera.fig10")[0].settings(replace(QUICK, overrides=("experiment.window_s=0.5",)))


def test_a_link_of_no_rate_leaves_one_gpu() -> None:
    assert network._cuts_without_a_link("a100_l40s") == 0


@pytest.mark.parametrize(("end_s", "said"), [(0.03, "threshold, a U: 1.50 and 1.50"),
                                             (0.01, "threshold, no U: 0.50 and 0.50")])  # fmt: skip
def test_the_caption_says_whether_there_is_a_u(end_s: float, said: str) -> None:
    rows = [
        {"varied": name, "value": v, "per_token_s": 0.02 if v == usual else end_s}
        for name, (values, usual) in settings("fig10").varied.items()
        for v in values
    ]
    assert said in switching._shape(rows, settings("fig10"))
