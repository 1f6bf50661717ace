"""MEDUSA's figures' duties, beside what their own results say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from c2c.errors import SettingError
from experiments.figure import Computed
from experiments.papers.medusa import drawing, switch, timeline
from experiments.papers.medusa.emulated_restore import classifier_rows, restore_model
from experiments.papers.medusa.fleet import Fleet, tail_of
from experiments.papers.medusa.models import BATCH_SIZES, MODELS, nodes_a_layer
from tests.experiments.duties import QUICK, agreement, check_misses, claims_without_answer


def drawn(draw: Any, figure: Computed) -> None:
    assert draw(dict(figure.tables), figure.caption).axes
    assert len(figure.caption.split()) <= 50


def test_nine_of_ten_models_have_nodes_by_the_rule() -> None:
    figure = timeline.compute(QUICK)
    rows = figure.tables["models"].to_pylist()
    off = {r["model"]: r["nodes"] / r["printed_nodes"] - 1 for r in rows}
    assert sum(abs(x) <= 0.055 for x in off.values()) == 9
    assert off["falcon_7b"] == pytest.approx(-0.14, abs=0.01)
    agrees = agreement(figure)
    assert all(agrees[f"medusa.table1.{m.row}"] for m in MODELS)
    assert agrees["medusa.fig7a.vs_vllm"]
    assert agrees["medusa.fig7b.coldstart"]
    assert agrees["medusa.fig2.both_share_avg"]
    check_misses(figure.results, least=3)
    drawn(drawing.draw_timeline, figure)


def test_models_of_a_figure_are_chosen_and_their_claims_alone_are_answered() -> None:
    few = ("experiment.models=[qwen15_0p5b,yi_6b]", "experiment.shown=yi_6b")
    figure = timeline.compute(replace(QUICK, overrides=few))
    assert {r["model"] for r in figure.tables["timeline"].to_pylist()} == {"yi_6b"}
    assert "2 models" in figure.finding
    assert {r.claim_id for r in figure.results} == {
        "medusa.table1.qwen15_0p5b", "medusa.table1.yi_6b"
    }  # fmt: skip
    with pytest.raises(SettingError, match=r"experiment\.shown='qwen15_4b': expected .*yi_6b"):
        timeline.compute(replace(QUICK, overrides=few[:1]))


def test_only_what_was_not_an_input_is_out_of_sample() -> None:
    inputs = {r.claim_id for r in timeline.compute(QUICK).results if r.sample == "in-sample"}
    for name in ("structure_init", "weights", "tokenizer", "kv_init", "capture", "total"):
        assert f"medusa.fig8a.{name}" in inputs
    assert {"medusa.fig8c.vs_vllm", "medusa.fig8c.capture"} <= inputs


def test_a_switch_costs_less_with_restored_graphs() -> None:
    figure = switch.compute(QUICK)
    rows = {(r["row"], r["model"]): r["switch_s"] for r in figure.tables["switch"].to_pylist()}
    for model in {model for _, model in rows}:
        plain, captured, restored, *_ = (rows[row, name] for row, name in rows if name == model)
        assert plain < restored < captured
    assert "1.1 s with restored graphs and 2.1 s with captured" in figure.finding
    drawn(drawing.draw_switch, figure)


def test_a_request_waits_for_the_instance_that_it_causes() -> None:
    found = {}
    for start in ("vllm", "no_graph", "medusa"):
        fleet = Fleet("qwen1.5-4b", start, 4, "synthetic")
        found[start] = tail_of(fleet, 2.0, 30, 0, compiled=False).p99_ttft_s
    assert found["medusa"] < found["no_graph"] < found["vllm"]
    assert found["medusa"] == pytest.approx(1.67, abs=0.15)
    assert found["vllm"] == pytest.approx(2.85, abs=0.15)


def test_all_graphs_of_a_model_are_restored() -> None:
    model = next(m for m in MODELS if m.row == "qwen15_0p5b")
    made, row = restore_model(model)
    assert row.nodes == row.restored == model.nodes
    assert (row.batch_sizes, row.refused, row.validated) == (35, 0, 2)
    assert row.from_module > 0
    assert row.from_symbol > 0
    assert not made.artefact.refused


def test_every_tables_nodes_can_be_had() -> None:
    for model in MODELS:
        layers = model.load().layers
        assert sum(2 + layers * n for n in nodes_a_layer(model.nodes, layers)) == model.nodes
    assert len(BATCH_SIZES) == 35


def test_classifiers_are_told_apart() -> None:
    rows = {(r["classifier"], r["programs"]): r for r in classifier_rows(5)}
    assert rows["paper", "plain"]["wrong_words"] == 0
    assert rows["paper", "integers like addresses"]["wrong_words"] > 0
    assert all(rows["differential", kind]["wrong_words"] == 0 for _, kind in rows)


# Whose claims the other figures answer: what is missing there, a full report says.
ELSEWHERE = (
    "abstract.*", "sec2.*", "sec3.*", "sec4.*", "sec41.*", "sec42.*", "sec43.skip_*",
    "sec5.*_chain", "sec52.*", "sec6.*", "fig9.graphs_analysed", "fig10*", "fig11*", "sec75.*",
)  # fmt: skip


def test_every_claim_of_the_paper_is_answered_or_explained() -> None:
    answered = {r.claim_id for r in timeline.compute(QUICK).results}
    assert not claims_without_answer("medusa", answered, ELSEWHERE)
