"""Step costs from records, and the simulator under them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from c2c.cost import load_constants
from c2c.engine import Options, fleet_of, steps_table
from c2c.engine.catalog import Entry
from c2c.engine.record import StepRow
from c2c.errors import DataError
from c2c.models import from_hf_config
from experiments.serving.calibration import fit_steps, with_costs
from experiments.serving.replaying import compare, replay
from experiments.serving.settings import ServeConf, overrides_of, register, settings_of
from tests.transformer.random_checkpoints import config_of

A = {1: 0.002, 8: 0.005}
C, P, B, OUTSIDE = 2e-6, 0.004, 3e-5, 0.0005


def recorded(count: int = 400, noise: float = 0.0) -> pa.Table:
    rng = np.random.default_rng(0)
    rows = []
    for k in range(count):
        prompt = int(rng.integers(1, 200)) if k % 4 == 0 else 0
        width = 8 if prompt or k % 3 else 1
        kv = int(rng.integers(10, 3000))
        seconds = C * kv + (P + B * prompt if prompt else A[width])
        rows.append(
            StepRow(
                plan=k, number=0, device=0, model="m", chunk=256 * bool(prompt), rows=width,
                calls=1, prompt_tokens=prompt, decodes=width, kv_tokens=kv,
                seconds=seconds * (1 + noise * float(rng.standard_normal())), host_s=0.0,
                sent_s=0.0, heard_s=0.0, outside_s=OUTSIDE, is_turn=False, again=0,
            )
        )  # fmt: skip
    return steps_table([*rows, replace(rows[1], seconds=9.0, again=70)])


def test_a_fit_finds_what_steps_cost() -> None:
    fit = fit_steps([recorded()])["m"]
    assert fit.rows_s == pytest.approx(A, rel=1e-6)
    assert (fit.kv_s, fit.prompt_s, fit.token_s) == pytest.approx((C, P, B), rel=1e-6)
    assert fit.outside_s == pytest.approx(OUTSIDE)
    noisy = fit_steps([recorded(4000, noise=0.05)])["m"]
    assert noisy.rows_s == pytest.approx(A, rel=0.02)
    assert noisy.residual == pytest.approx(0.05, rel=0.3)
    with pytest.raises(DataError, match="decode steps, expected at least"):
        fit_steps([recorded(4)])


def test_one_request_takes_what_its_steps_take() -> None:
    register()
    from c2c.config import load

    system = settings_of(load(overrides_of(["port=0"]), "serve")).engine.system
    spec = from_hf_config(config_of("llama"), "m")
    entries = [Entry(name="m", path=Path(), spec=spec, context=512)]
    prepared = fleet_of(
        entries, Options(context=512, pool_bytes=32 << 20), system, load_constants("gh200")
    )
    fit = fit_steps([recorded()])
    measured = with_costs(prepared, fit)
    live = pa.table(
        {
            "arrival_s": [1.0], "model": ["m"], "prompt_tokens": [100], "output_tokens": [41],
            "first_token_s": [2.0], "finished_s": [3.0],
        }
    )  # fmt: skip
    found = replay(measured, live).to_pylist()[0]
    prompt = P + B * 100 + OUTSIDE
    assert found["first_token_s"] - 1.0 == pytest.approx(prompt, rel=1e-6)
    decode = sum(A[1] + C * (101 + k) + OUTSIDE for k in range(40))
    assert found["finished_s"] - found["first_token_s"] == pytest.approx(decode, rel=0.01)
    errors = {(one.name, one.share): one.error for one in compare(live, replay(measured, live))}
    assert errors["ttft_s", 50] == pytest.approx(prompt / 1.0 - 1)
    with pytest.raises(DataError, match="steps of m"):
        with_costs(prepared, {})


def test_settings_are_told_before_anything_starts() -> None:
    from c2c.config import load
    from c2c.errors import SettingError

    register()
    for wrong, field in (
        ("port=99999", "port"), ("host=0.0.0.0", "key"), ("host=nowhere", "host"),
        ("workers=0", "workers"), ("rows=[8,1]", "shapes.rows"), ("dtype=int8", "dtype"),
        ("max_open=0", "max_open"), ("hang_s=0", "hang_s"), ("constants=moon", "constants"),
        ("linear=hybrid", "linear"), ("context=1", "context"), ("drain_s=-1", "drain_s"),
    ):  # fmt: skip
        with pytest.raises(SettingError) as error:
            settings_of(load(overrides_of(["port=0", wrong]), "serve"))
        assert error.value.field == field
    assert ServeConf().port == 8123
