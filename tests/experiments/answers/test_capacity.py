"""Capacity against a closed form, resumed, and what its command refuses."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from c2c.config import build, load, simulate
from experiments.answers.capacity import Capacity, find_capacity
from experiments.answers.quantity import quantity_of

ONE_AT_A_TIME = (
    "mig=1x96gb", "catalog.models=[{spec: llama-3-3b}]", "system.max_batch=1", "workload=poisson",
    "workload.lengths=fixed", "workload.prompt_tokens=1", "workload.output_tokens=1",
    "figures=false", "timeline.rows=0",
)  # fmt: skip
COMMAND = [sys.executable, "-m", "c2c", "capacity"]
TINY = (
    "workload=poisson", "workload.requests=60", "workload.rate_rps=2", "catalog=dense6",
    "capacity.seeds=[0,1]", "capacity.tolerance=0.3", "figures=false",
)  # fmt: skip


def md1_share(rate: float, service_s: float, wait_s: float) -> float:
    """Share of requests that wait at most so long: Crommelin's formula for M/D/1."""
    terms = (rate * (k * service_s - wait_s) for k in range(int(wait_s // service_s) + 1))
    return (1 - rate * service_s) * sum(
        x**k / math.factorial(k) * math.exp(-x) for k, x in enumerate(terms)
    )


def test_crommelins_formula_is_as_pollaczek_and_khinchine_say() -> None:
    load_, step = 0.6, 0.01
    mean = sum((1 - md1_share(load_, 1.0, k * step)) * step for k in range(2000))
    assert mean == pytest.approx(load_ / (2 * (1 - load_)), rel=0.02)


@pytest.mark.slow
def test_the_limit_of_md1_is_found_within_two_percent(tmp_path: Path) -> None:
    """Constant service, Poisson arrivals, 95 % of the requests are to wait at most 2.5 services."""
    probe = simulate(build(load([*ONE_AT_A_TIME, "workload.requests=2"])), compiled=False).requests
    started, finished = (probe.column(c).to_numpy() for c in ("started_s", "finished_s"))
    service_s = float((finished - started)[1])
    low, high = 0.0, 1.0 / service_s
    for _ in range(50):
        rate = (low + high) / 2
        low, high = (
            (rate, high) if md1_share(rate, service_s, 2.5 * service_s) >= 0.95 else (low, rate)
        )
    setup = build(
        load([*ONE_AT_A_TIME, "workload.requests=20000", "workload.rate_rps=20",
              f"slo.ttft_s={3.5 * service_s}", "slo.attainment=0.95", f"out={tmp_path}"])
    )  # fmt: skip
    found = find_capacity(
        setup, setup.settings, quantity_of("rate", setup), seeds=[0, 1, 2], tolerance=0.01,
        workers=2, on_point=lambda _: None,
    )  # fmt: skip
    middle = found.interval
    assert middle is not None
    assert middle.half is not None
    assert middle.mean == pytest.approx(low, rel=0.02)
    assert abs(middle.mean - low) <= middle.half


def search(out: Path) -> Capacity:
    overrides = [o for o in TINY if not o.startswith("capacity.")]
    setup = build(load([*overrides, f"out={out}"]))
    return find_capacity(
        setup, setup.settings, quantity_of("rate", setup), seeds=[0, 1], tolerance=0.3,
        workers=2, on_point=lambda _: None,
    )  # fmt: skip


@pytest.mark.slow
def test_a_search_that_is_killed_goes_on_and_ends_as_if_undisturbed(tmp_path: Path) -> None:
    command = [*COMMAND, *TINY, "out=out"]
    killed = subprocess.Popen(
        command, cwd=tmp_path, start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 120
    while not list(tmp_path.glob("out/points/*/DONE")) and time.monotonic() < until:
        assert killed.poll() is None
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "(complete already)" in done.stdout
    (answer,) = tmp_path.glob("out/rate_*/answer.json")
    found = json.loads(answer.read_text())
    whole = search(tmp_path / "whole")
    assert [(s["met"], s["missed"]) for s in found["seeds"]] == [
        (b.met, b.missed) for b in whole.brackets
    ]
    assert found["answer"] in " ".join(done.stdout.split())
    table = pq.read_table(answer.parent / "capacity.parquet")
    assert table.num_rows == found["runs"]
    for row in table.to_pylist():
        bracket = whole.brackets[row["seed"]]
        assert row["meets"] == (row["rate"] <= bracket.met)
        assert (tmp_path / "out" / "points" / row["run"] / "DONE").is_file()
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    said = f"{found['answer']} {found['note']} already answered: "
    said += f"{answer.parent.relative_to(tmp_path)}"
    assert " ".join(again.stdout.split()) == said  # wrapped at words
    assert "the workload lasts" in found["note"]
