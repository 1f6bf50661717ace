"""Engines that launch kernels one by one, beside public rows of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from c2c.cost import HostTime, Routing, load_engine
from experiments.measured.eager_engines import batch_steps, launched_rows, shapes, single_requests
from experiments.measured.rows import OWN, Rows, read_folder
from experiments.measured.tables import eager_table

ROWS = read_folder(OWN)
SINGLE: Rows = ROWS["single_requests"]
FITTED = "qwen3-30b-a3b"  # the expert's seconds are what its row leaves


def test_one_constant_a_host_predicts_each_dense_row_and_the_other_mixture() -> None:
    errors = {}
    for model, name, tokens_s in zip(
        SINGLE["model"], SINGLE["engine"], SINGLE["tokens_per_s"], strict=True
    ):
        host = load_engine(name).host
        errors[model] = float(host.launches_s(shapes()[model], 1, Routing())) * tokens_s - 1.0
    dense = [abs(e) for m, e in errors.items() if not shapes()[m].experts]
    assert len(dense) == 15
    assert max(dense) < 0.07
    assert abs(errors["qwen2-57b-a14b"]) < 0.15


def test_the_cost_model_adds_nothing_but_where_a_chip_is_not_calibrated() -> None:
    """An H20's tensor cores take 50 ms for the 64 rows that the model's smallest tile has."""
    errors = {row.model: row.error for row in single_requests(SINGLE)}
    assert errors.pop("qwen3-32b") == pytest.approx(0.32, abs=0.03)
    assert abs(errors.pop("qwen2-57b-a14b")) < 0.15
    assert max(map(abs, errors.values())) < 0.07


@pytest.mark.slow
def test_an_eager_engine_fitted_to_one_chip_predicts_steps_on_others() -> None:
    engine = load_engine("vllm-0.5.1-eager")
    rows = ROWS["engine_steps"]
    plain = {c: _median(rows, c, "decode", without=True) for c in ("h100_sxm", "a100_sxm")}
    for chip, most in (("h100_sxm", 0.12), ("a100_sxm", 0.09), ("h20", 0.15), ("a10", 0.08)):
        found = _median(rows, chip, "decode")
        assert found < most
        assert chip not in plain or found < 0.3 * plain[chip]
    assert engine.host.layer_s == pytest.approx(_layer_s(rows), rel=0.01)
    assert _median(rows, "h100_sxm", "prefill") < 0.1


def _dense(rows: Rows, chip: str) -> Rows:
    mask = [not shapes()[m].experts for m in rows["model"]]
    return rows.take((rows["chip"] == chip) & np.array(mask))


def _median(rows: Rows, chip: str, what: str, *, without: bool = False) -> float:
    engine = load_engine("vllm-0.5.1-eager")
    if without:
        engine = replace(engine, host=HostTime())
    found = batch_steps(_dense(rows, chip), engine)
    return float(np.median([abs(row.error) for row in found if row.what == what]))


def _layer_s(rows: Rows) -> float:
    """The rule of the constant: a decode step of one request over its layers, the median."""
    one = _dense(rows, "h800")
    one = one.take(one["batch"] == 1)
    layers = [shapes()[m].layers for m in one["model"]]
    return float(np.median(one["decode_ms"] / np.array(layers))) / 1e3


@pytest.mark.slow
def test_the_table_of_the_command_has_every_row() -> None:
    rows = launched_rows(ROWS)
    assert len(rows) == len(SINGLE["model"]) + 2 * len(ROWS["engine_steps"]["model"])
    assert eager_table(rows).row_count == len({(r.engine, r.chip, r.what) for r in rows}) == 12
