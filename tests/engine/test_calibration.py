"""Step costs from records, and the simulator under them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml

from c2c.cost import load_constants
from c2c.engine import Options, fleet_of
from c2c.engine.catalog import Entry
from c2c.engine.others import CpuSeconds, cpu_seconds, share_of_others
from c2c.engine.record import StepRow, Tape
from c2c.errors import DataError, SettingError
from c2c.models import from_hf_config
from c2c.runs import write_parquet
from c2c.serving import Prepared
from c2c.serving.tables.port import (
    Arrival,
    BlocksLost,
    Cancelled,
    DropWeights,
    Event,
    KeepWeights,
    Ready,
    ReleaseWeights,
)
from c2c.simulator import build_machine
from c2c.transformer import pieces
from experiments.calibrate import CalibrateSettings, calibrate
from experiments.plain_settings import read_settings
from experiments.serving.calibration import fit_steps, with_costs
from experiments.serving.drift import shapes_of
from experiments.serving.inputs import Inputs, inputs_from
from experiments.serving.live_run_simulation import compare, records_of, replay
from experiments.serving.machine import write_machine
from experiments.serving.record import STEPS
from experiments.serving.recorded_replay import retell
from experiments.serving.settings import ServeConf, overrides_of, register, settings_of
from experiments.serving.steps_file import read_steps
from tests.transformer.random_checkpoints import config_of

A = {1: 0.002, 8: 0.005}
C, OUTSIDE, BEFORE_PROMPT = 2e-6, 0.0005, 0.002
TURN, BEFORE_TURN = 0.003, 0.001
LOADS, COLD_LOADS = (0.01, 0.03), (0.5, 0.7)
CHUNK = {64: 0.006, 256: 0.02}


def recorded(count: int = 400, noise: float = 0.0) -> pa.Table:
    rng = np.random.default_rng(0)
    rows = []
    for k in range(count):
        prompt = int(rng.integers(1, 200)) if k % 4 == 0 else 0
        width = 8 if prompt or k % 3 else 1
        kv = int(rng.integers(10, 3000))
        calls = [next(b for b in CHUNK if b >= n) for n in pieces(prompt, tuple(CHUNK))] or [0]
        is_turn = k % 5 == 0
        seconds = C * kv + (sum(CHUNK[b] for b in calls) if prompt else A[width]) + TURN * is_turn
        rows.append(
            StepRow(
                plan=k, number=0, device=0, model="m", chunk=sum(calls), rows=width,
                calls=calls, prompt_tokens=prompt, decodes=width, kv_tokens=kv,
                seconds=seconds * (1 + noise * float(rng.standard_normal())), host_s=0.0,
                begun_s=0.0, sent_s=0.0, heard_s=0.0,
                outside_s=(BEFORE_PROMPT if prompt else OUTSIDE) + BEFORE_TURN * is_turn,
                is_turn=is_turn,
                is_cold=False, again=0, found=0,
            )
        )  # fmt: skip
    tape = Tape(is_kept=True)
    loads = [
        replace(rows[1], number=-1, heard_s=seconds, seconds=0.0, is_cold=is_cold)
        for is_cold, each in ((False, LOADS), (True, COLD_LOADS))
        for seconds in each
    ]
    for row in (*rows, replace(rows[1], seconds=9.0, again=70), *loads):
        tape.step(row)
    return tape.steps()


def test_a_fit_finds_what_steps_cost() -> None:
    fit = fit_steps([recorded()])["m"]
    assert fit.rows_s == pytest.approx(A, rel=1e-6)
    assert fit.kv_s == pytest.approx(C, rel=1e-6)
    assert fit.chunk_s == pytest.approx(CHUNK, rel=1e-6)
    assert (fit.turn_s, fit.turns) == (pytest.approx(TURN, rel=1e-6), 80)
    assert fit.outside_s == pytest.approx(OUTSIDE)
    assert fit.turn_outside_s == pytest.approx(BEFORE_TURN)
    assert fit.prompt_outside_s == pytest.approx(BEFORE_PROMPT)
    assert fit.load_s == pytest.approx(sum(LOADS) / 2, rel=0.02)
    assert fit.cold_load_s == pytest.approx(sum(COLD_LOADS) / 2, rel=0.02)
    noisy = fit_steps([recorded(4000, noise=0.05)])["m"]
    assert noisy.rows_s == pytest.approx(A, rel=0.02)
    assert noisy.residual == pytest.approx(0.05, rel=0.3)
    always = recorded()  # a model that never has two steps in a row: no telling what a turn adds
    at = always.column_names.index("is_turn")
    always = always.set_column(at, "is_turn", pa.array([True] * len(always)))
    assert fit_steps([always])["m"].turn_s == 0.0
    with pytest.raises(DataError, match="decode steps, expected at least"):
        fit_steps([recorded(4)])


def record(folder: Path, table: pa.Table, others: Sequence[float]) -> Path:
    folder.mkdir()
    write_parquet(folder / STEPS, table)
    write_machine(folder, others)
    return folder


def calibrated(arguments: Sequence[str]) -> None:
    calibrate(read_settings(CalibrateSettings, arguments))


def test_a_calibration_is_written_only_of_a_quiet_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = record(tmp_path / "quiet", recorded(), [0.0, 0.01])
    to = tmp_path / "cpu.yaml"
    calibrated([f"run={quiet}", f"to={to}"])
    assert "1 models" in capsys.readouterr().out
    assert read_steps(to) == fit_steps([recorded()])
    about = yaml.safe_load(to.read_text())["measured"]
    assert about["runs"][0] == {
        "run": "quiet", "others": 0.01, "drift": {"windows": 1, "worst": pytest.approx(0, abs=1e-9),
                                                  "usual": pytest.approx(0, abs=1e-9)},
    }  # fmt: skip
    busy = record(tmp_path / "busy", recorded(), [0.0, 0.4])
    with pytest.raises(SettingError, match=r"others=0.02: .*at least 0.400"):
        calibrated([f"run=[{quiet},{busy}]", f"to={to}"])
    calibrated([f"run={busy}", f"to={to}", "others=0.5"])
    slower = recorded()
    late = np.arange(len(slower)) >= 200  # from ten seconds on, a fifth slower
    for name, values in (
        ("seconds", slower["seconds"].to_numpy() * np.where(late, 1.2, 1.0)),
        ("heard_s", np.where(late, 15.0, 0.0)),
    ):
        at = slower.column_names.index(name)
        slower = slower.set_column(at, name, pa.array(values))
    drifting = record(tmp_path / "drifting", slower, [0.0])
    with pytest.raises(SettingError, match=r"drift=0\.03"):
        calibrated([f"run={drifting}", f"to={to}"])
    for nothing in ("run=", "run=[]", "run=nowhere", "drift=-1"):
        with pytest.raises(SettingError):
            calibrated([f"run={quiet}", nothing])
    damaged = tmp_path / "damaged.yaml"
    damaged.write_text("models: [1]")
    with pytest.raises(DataError, match="holds no step costs"):
        read_steps(damaged)


def test_what_others_compute_is_what_is_not_ours(tmp_path: Path) -> None:
    now = cpu_seconds()
    assert now is not None
    assert 0 < now.ours_s < now.busy_s < now.total_s
    before = CpuSeconds(total_s=100.0, busy_s=50.0, ours_s=10.0)
    later = CpuSeconds(total_s=120.0, busy_s=60.0, ours_s=15.0)
    assert share_of_others(before, later) == pytest.approx(0.25)
    assert share_of_others(before, replace(later, ours_s=30.0)) == 0.0
    assert cpu_seconds(tmp_path) is None


def prepared_for(*words: str) -> Prepared:
    register()
    from c2c.config import load

    system = settings_of(load(overrides_of(["port=0", *words]), "serve")).engine.system
    spec = from_hf_config(config_of("llama"), "m")
    entries = [Entry(name="m", path=Path(), spec=spec, context=512)]
    options = Options(context=512, pool_bytes=32 << 20)
    return fleet_of(entries, options, system, load_constants("gh200"))


def served(first_token_s: float, finished_s: float) -> pa.Table:
    return pa.table(
        {
            "id": [7], "arrival_s": [1.0], "model": ["m"], "prompt_tokens": [300],
            "output_tokens": [41], "first_token_s": [first_token_s], "finished_s": [finished_s],
            "status": ["finished"],
        }
    )  # fmt: skip


def inputs(live: pa.Table, *others: Event, prompt: int = 300) -> Inputs:
    tape = Tape(is_kept=True)
    asked = Arrival(
        at_s=1.0, request_id=7, model=0, prompt_tokens=prompt, max_output_tokens=60, priority=2
    )
    for event in (asked, *others):
        tape.event(event, ["m"])
    return inputs_from(tape.inputs(), live, ["m"])


def test_with_its_own_seconds_a_run_is_what_it_was() -> None:
    tape = Tape(is_kept=True)
    at_s = 1.0
    plans = [(0, 0, 1, 0.5), (256, 0, 1, 0.25), (44, 0, 1, 0.125), (0, 1, 40, 0.0625)]
    for plan, (prompt, decodes, steps, seconds) in enumerate(plans):
        begun_s = at_s
        for number in range(steps):
            at_s += seconds
            tape.step(
                StepRow(
                    plan=plan, number=number if plan else -1, device=0,
                    model="m", chunk=prompt, rows=1,
                    calls=[prompt], prompt_tokens=prompt, decodes=decodes, kv_tokens=1,
                    seconds=seconds, host_s=0.0, begun_s=begun_s, sent_s=begun_s, heard_s=at_s,
                    outside_s=0.0, is_turn=False,
                is_cold=False, again=0, found=0,
                )
            )  # fmt: skip
    live = served(1.875, at_s)
    found = retell(prepared_for(), inputs(live), tape.steps())
    assert (found.plans, found.equal) == (4, 4)
    assert all(one.error == 0.0 for one in compare(live, found.requests))
    with pytest.raises(DataError, match="more than were recorded"):
        retell(prepared_for(), inputs(live), tape.steps().slice(0, 2))
    assert retell(prepared_for(), inputs(live, prompt=299), tape.steps()).equal == 3


def test_cancels_and_wishes_about_weights_come_once_more() -> None:
    live = served(2.0, 3.0)
    others: list[Event] = [
        DropWeights(at_s=0.5, model=0),  # brought back from disk by the request
        Arrival(at_s=1.0, request_id=9, model=0, prompt_tokens=5, max_output_tokens=90,
                deadline_s=50.0),
        KeepWeights(at_s=1.01, model=0),
        Cancelled(at_s=1.02, request_id=9),
        ReleaseWeights(at_s=1.1, model=0),
    ]  # fmt: skip
    given = inputs(live, *others, Ready(at_s=2.0, device=0, available_gbps=1.0))
    assert [type(event).__name__ for event in given.others] == [
        "DropWeights", "KeepWeights", "ReleaseWeights"
    ]  # fmt: skip
    assert given.cancel_s == (math.inf, pytest.approx(0.02))
    assert given.arrivals[1].deadline_s == 50.0
    assert given.arrivals[0].priority == 2
    assert given.lengths == (41, 90)
    measured = with_costs(prepared_for(), fit_steps([recorded()]), tuple(CHUNK))
    fit = fit_steps([recorded()])
    found = replay(measured, given, fit)
    assert found["output_tokens"].to_pylist() == [41]
    alone = replay(measured, inputs(live), fit)
    later_s = found["first_token_s"][0].as_py() - alone["first_token_s"][0].as_py()
    assert later_s > 0.9 * (fit["m"].cold_load_s - fit["m"].load_s)
    with pytest.raises(DataError, match="none was finished"):
        inputs(live.set_column(7, "status", pa.array(["failed"])))
    with pytest.raises(DataError, match="has no arrival"):
        inputs_from(Tape(is_kept=True).inputs(), live, ["m"])


def test_a_prompt_begins_after_blocks_that_were_found_until_they_are_lost() -> None:
    live = served(2.0, 3.0)
    prepared = prepared_for("system.prefix_cache.hbm=true")
    keys = (11, 12, 13, 14)
    asks = [
        Arrival(at_s=at_s, request_id=number, model=0, prompt_tokens=300, max_output_tokens=5,
                blocks=keys)
        for number, at_s in ((1, 10.0), (2, 20.0), (3, 30.0))
    ]  # fmt: skip
    given = inputs(live, *asks[:2], BlocksLost(at_s=25.0, device=0), asks[2])
    assert [type(event).__name__ for event in given.others] == ["BlocksLost"]
    measured = with_costs(prepared, fit_steps([recorded()]), tuple(CHUNK))
    found = records_of(measured, build_machine(measured), given)
    assert found["cached_hbm_tokens"].to_pylist() == [0, 0, 256, 0]
    first_s = np.array(found["first_token_s"]) - np.array(found["arrival_s"])
    assert first_s[2] < 0.5 * first_s[1]
    assert first_s[3] == pytest.approx(first_s[1], rel=0.2)


def test_one_request_takes_what_its_steps_take() -> None:
    prepared = prepared_for()
    fit = fit_steps([recorded()])
    measured = with_costs(prepared, fit, tuple(CHUNK))
    live = served(2.0, 3.0)
    found = replay(measured, inputs(live)).to_pylist()[0]
    prompt = CHUNK[256] + CHUNK[64] + C * 256 + 2 * BEFORE_PROMPT  # a step a chunk
    assert found["first_token_s"] - 1.0 == pytest.approx(prompt, rel=1e-6)
    decode = sum(A[1] + C * (301 + k) + OUTSIDE for k in range(40))
    assert found["finished_s"] - found["first_token_s"] == pytest.approx(decode, rel=0.01)
    loading = replay(measured, inputs(live), fit).to_pylist()[0]
    load_s = loading["first_token_s"] - found["first_token_s"]
    assert load_s == pytest.approx(fit["m"].load_s)
    simulated = replay(measured, inputs(live))
    errors = {(one.name, one.share): one.error for one in compare(live, simulated)}
    assert errors["ttft_s", 50] == pytest.approx(prompt / 1.0 - 1)
    slower = live.set_column(5, "first_token_s", pa.array([2.5]))
    floors = {(one.name, one.share): one.floor for one in compare(live, live, [slower])}
    assert floors["ttft_s", 50] == pytest.approx(0.5)
    with pytest.raises(DataError, match="steps of m"):
        with_costs(prepared, {}, (64, 256))


def test_settings_are_told_before_anything_starts() -> None:
    from c2c.config import load
    from c2c.errors import SettingError

    register()
    for wrong, field in (
        ("port=99999", "port"), ("host=0.0.0.0", "key"), ("host=nowhere", "host"),
        ("workers=0", "workers"), ("rows=[8,1]", "shapes.rows"), ("dtype=int8", "dtype"),
        ("max_open=0", "max_open"), ("hang_s=0", "hang_s"), ("start_s=0", "start_s"),
        ("constants=moon", "constants"), ("sampling=hot", "sampling"), ("context=0", "context"),
        ("linear=hybrid", "linear"), ("context=1", "context"), ("drain_s=-1", "drain_s"),
        ("ahead=2", "ahead"), ("weights_bytes=0", "weights_bytes"), ("devices=some", "devices"),
        ("devices=[1]", "devices"), ("executables=/dev/null/x", "executables"),
        ("weights_bytes=9 linear=reference", "weights_bytes"),
        ("memory_fraction=1.1", "memory_fraction"),
        ("memory_fraction=0.5 pool_bytes=99999999", "memory_fraction"),
    ):  # fmt: skip
        with pytest.raises(SettingError) as error:
            settings_of(load(overrides_of(["port=0", *wrong.split()]), "serve"))
        assert error.value.field == field
    assert ServeConf().port == 8123


def test_steps_are_told_by_shape_and_what_the_fit_has_not_seen() -> None:
    steps = recorded()
    found = {(one.kind, one.size): one for one in shapes_of(steps, fit_steps([steps]))}
    assert sum(one.steps for one in found.values()) == 400  # loads are no steps
    for (kind, size), one in found.items():
        if kind == "decode" or size in CHUNK:
            assert one.is_seen
        assert one.error == pytest.approx(0.0, abs=1e-6), (kind, size)
    slow = steps.set_column(
        steps.column_names.index("seconds"), "seconds",
        pa.array([2 * s for s in steps["seconds"].to_pylist()]),
    )  # fmt: skip
    for one in shapes_of(slow, fit_steps([steps])):
        assert one.error == pytest.approx(-0.5, abs=1e-6)
    fewer = {"m": replace(fit_steps([steps])["m"], rows_s={1: A[1]})}
    unseen = next(one for one in shapes_of(steps, fewer) if (one.kind, one.size) == ("decode", 8))
    assert not unseen.is_seen
    assert unseen.fitted_s == 0.0
