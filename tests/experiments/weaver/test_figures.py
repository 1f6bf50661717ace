"""WEAVER's figures: what is fitted, what runs are made of, and that readings change them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.systems.weaver import fitted, fitted_claims
from experiments.claims import claim
from experiments.figure import figures
from experiments.papers.weaver import fig5, fig6, model, table1
from experiments.papers.weaver.two_models import L40S, Served, largest_rate, lengths_of, served
from tests.experiments.duties import QUICK, check_answers
from tests.tiers import tiered


def test_two_printed_numbers_are_fitted() -> None:
    assert fitted_claims() == {"weaver.table1.b16", "weaver.fig7a.cpu_control"}
    experiment: table1.Parallelism = figures()["weaver.table1"].settings(QUICK)
    ours = table1.throughput(experiment, 16, fitted()["collective_s"])["tp2_tok_s"]
    assert ours == pytest.approx(claim("weaver.table1.b16").value["tp2_tok_s"], rel=1e-4)
    closer = table1.throughput(experiment, 16, fitted()["collective_s"] / 2)["tp2_tok_s"]
    assert closer > ours


def test_lengths_have_the_printed_means_and_the_limit() -> None:
    for lengths, means in (("azure", (749, 232)), ("burstgpt", (575, 340))):
        pairs = lengths_of(lengths, None)
        assert pairs.mean(axis=0) == pytest.approx(means, rel=0.01)
        assert pairs.sum(axis=1).max() <= 2048
    assert (lengths_of("burstgpt", None, "constant") == [[575, 340]]).all()


def test_a_load_is_served_in_the_long_run() -> None:
    """Little's law, and rooms that hold what is in flight."""
    base = Served(lengths="long", hot_rps=2.0)
    for way in ("dedicated", "woven", "temporal", "spatial"):
        found = served(replace(base, way=way))
        assert found.batch == pytest.approx(found.rate * 1023 * found.hot_s, rel=0.1)
        assert 0.0 < found.hot_kv <= found.kept <= 1.0 if way != "woven" else found.kept <= 1.0
        assert found.cold_s <= found.cold_p99_s
    assert served(base).cold_s > served(replace(base, way="dedicated")).cold_s


def test_largest_rates_depend_on_the_readings() -> None:
    base = Served(lengths="long")
    assert largest_rate(base) > 1.2 * largest_rate(replace(base, way="dedicated"))
    for change in ({"host_seconds": 0.005}, {"batch_limit": 64}, {"kv_share": 0.7}):
        assert largest_rate(replace(base, **change)) < largest_rate(base)
    assert largest_rate(replace(base, node=L40S)) < largest_rate(base)


def test_a_line_is_told_from_a_bend() -> None:
    x = [1.0, 2.0, 3.0, 4.0]
    assert fig5.is_linear(x, [2.0, 4.1, 5.9, 8.0])
    assert not fig5.is_linear(x, (np.array(x) ** 4).tolist())


@given(st.sets(st.integers(0, 100), min_size=1, max_size=12), *2 * [st.integers(0, 100)])
def test_the_lowest_point_of_a_bowl_is_found_from_any_start(
    points: set[int], bottom: int, start: int
) -> None:
    found = fig5.lowest([*points], lambda x: abs(x - bottom), start)
    assert abs(found - bottom) == min(abs(x - bottom) for x in points)


def test_an_experiment_is_changed_by_overrides() -> None:
    asked = ("experiment.hot_rps=[1]", "experiment.pair.kv_share=0.7")
    found = figures()["weaver.fig6"].settings(replace(QUICK, overrides=asked))
    assert (found.hot_rps, found.pair.kv_share, found.pair.lengths) == ((1.0,), 0.7, "long")
    with pytest.raises(SettingError, match=r"experiment\.pair.*way"):
        figures()["weaver.fig6"].settings(
            replace(QUICK, overrides=("experiment.pair.way=knitted",))
        )


@pytest.mark.parametrize("figure", tiered([model, table1, fig6], model, table1))
def test_a_figure_answers_claims(figure: object) -> None:
    found = figure.compute(QUICK)  # type: ignore[attr-defined]
    assert found.results
    check_answers(found)
