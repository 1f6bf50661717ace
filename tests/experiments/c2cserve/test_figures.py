"""The analytic figures' duties, beside what their own results say."""

import functools
from pathlib import Path
from typing import Any

import pytest

from c2c.cost import DEFAULT_ALPHAS, in_sample_claims
from c2c.errors import SettingError
from experiments.claims import claim, explanations
from experiments.figure import Computed, Context
from experiments.papers.c2cserve import fig2, fig4, fig5, fig6, fig8, projection, table1, table2
from tests.experiments.duties import (
    QUICK,
    agreement,
    check_answers,
    check_misses,
    claims_without_answer,
)

ANALYTIC = {
    "table1": table1.compute, "table2": table2.compute, "fig4": fig4.compute, "fig5": fig5.compute,
    "fig6": fig6.compute, "fig8": fig8.compute, "projection": projection.compute,
}  # fmt: skip


@functools.cache
def computed(name: str) -> Computed:
    return ANALYTIC[name](QUICK)


@pytest.mark.parametrize("name", sorted(ANALYTIC))
def test_results_fit_their_claims_and_captions_name_the_link(name: str) -> None:
    figure = computed(name)
    assert figure.results
    assert "link variant" in figure.caption
    assert all(each.endswith(".") for each in figure.assumptions)
    check_answers(figure)
    assert all(t.num_rows for t in figure.tables.values())


def test_fitted_claims_are_declared_in_sample() -> None:
    fitted = in_sample_claims()
    for name in ANALYTIC:
        for r in computed(name).results:
            if r.claim_id in fitted:
                assert r.sample == "in-sample", r.claim_id


@pytest.mark.parametrize(
    "claim_id",
    [
        "c2cserve.fig4a.mig3.parity",
        "c2cserve.fig4a.mig7.asym_slower",
        "c2cserve.fig4b.asym.c2c_bytes",
        "c2cserve.fig4b.tradeoff",
    ],
)
def test_fig4_predictions_hold(claim_id: str) -> None:
    assert agreement(computed("fig4"))[claim_id]


def test_fig4_hybrid_interpolates_on_the_kernels_that_exist() -> None:
    rows = [r for r in computed("fig4").tables["latency"].to_pylist() if r["layout"] == "1x96gb"]
    link = [r["link_gb"] for r in rows]
    hbm = [r["hbm_gb"] for r in rows if r["alpha"] in DEFAULT_ALPHAS]
    assert link == sorted(link)
    assert hbm == sorted(hbm, reverse=True)


@pytest.mark.parametrize("path", ["sym", "asym"])
def test_fig4_hbm_bytes_are_within_a_tenth(path: str) -> None:
    (found,) = [
        r for r in computed("fig4").results if r.claim_id == f"c2cserve.fig4b.{path}.hbm_bytes"
    ]
    assert found.ours == pytest.approx(claim(found.claim_id).value, rel=0.1)


def test_hybrid_is_never_slower_than_the_better_dataflow() -> None:
    rows = computed("fig4").tables["latency"].to_pylist()
    for layout in {r["layout"] for r in rows}:
        chosen = [r for r in rows if r["layout"] == layout]
        pure = min(r["latency_ms"] for r in chosen if r["alpha"] in (0.0, 1.0))
        assert min(r["latency_ms"] for r in chosen) <= pure


def test_co_run_is_between_the_slower_solo_and_the_sum() -> None:
    for table in computed("fig6").tables.values():
        for r in table.to_pylist():
            assert 0 < r["corun_tokens_per_s"] <= r["solo_tokens_per_s"] * (1 + 1e-12)
            if r["demand_gbps"] <= 375:
                assert r["gap_percent"] == pytest.approx(0, abs=1e-9)
            else:
                assert r["gap_percent"] > 0


def test_speed_ups_stay_within_the_bandwidths() -> None:
    for r in computed("projection").tables["scaling"].to_pylist():
        assert r["hbm_gemm"] <= r["hbm_bandwidth"] * (1 + 1e-9)
        low, high = sorted((1.0, r["link_bandwidth"]))  # what is no link does not slow down
        assert low * (1 - 1e-9) <= r["hybrid_gemm"] <= high * (1 + 1e-9)


def test_one_tile_does_not_keep_up_with_hbm_where_a_gemm_has_few_columns() -> None:
    rows = computed("projection").tables["scaling"].to_pylist()
    rubin = {r["shape"]: r for r in rows if r["platform"] == "rubin"}
    assert rubin["gate_up"]["hbm_gemm_one_tile"] > 0.8 * rubin["gate_up"]["hbm_bandwidth"]
    assert rubin["down"]["hbm_gemm_one_tile"] < 0.6 * rubin["down"]["hbm_gemm"]


def test_fig2_without_traces_uses_the_generator_alone(tmp_path: Path) -> None:
    nothing = Context(profile="quick", link_variant="measured", seeds=(0,), traces=tmp_path)
    figure = fig2.compute(nothing)
    assert set(figure.tables["active"]["source"].to_pylist()) == {"synthetic"}
    assert {r.sample for r in figure.results} == {"in-sample"}


def test_fig2_of_the_real_trace_gives_the_papers_numbers(shared: Path) -> None:
    figure = fig2.compute(
        Context(profile="quick", link_variant="measured", seeds=(0,), traces=shared / "traces")
    )
    real: dict[str, Any] = {
        r.claim_id.removeprefix("c2cserve.trace."): r.ours
        for r in figure.results
        if "GenTD26" in r.note
    }
    assert real["models_fig2"] == 59
    assert round(real["median_idle"]) == 96
    assert round(real["longtail_models"]["models_percent"]) == 83


@pytest.mark.parametrize("bad", [{"profile": "slow"}, {"seeds": ()}, {"seeds": (1, 1)}])
def test_bad_context(bad: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        Context(**({"profile": "quick", "link_variant": "measured", "seeds": (0,)} | bad))


# Whose claims the figures that simulate answer: what is missing there, a full report says.
SIMULATED = ("abstract.*", "trace.*", *(f"fig{n}.*" for n in range(9, 15)))
ROOT = Path(__file__).parents[3]


def test_every_claim_of_the_paper_is_answered_or_explained() -> None:
    answered = {r.claim_id for name in ANALYTIC for r in computed(name).results}
    assert not claims_without_answer("c2cserve", answered, SIMULATED)


@pytest.mark.parametrize("claim_id", sorted(i for i, e in explanations().items() if e.tests))
def test_tests_that_explain_a_claim_exist(claim_id: str) -> None:
    for test in explanations()[claim_id].tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), test


def test_misses_of_the_analytic_figures_have_reasons_and_hits_have_none() -> None:
    check_misses([r for name in ANALYTIC for r in computed(name).results], least=4)
