"""The referee: the same requests for all, step times as they were asked for, differences told."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.lab.referee import aisimulate, blis, ours, vidur
from experiments.lab.referee.command import SIMULATORS, _table
from experiments.lab.referee.page import as_page, reasons, times_of
from experiments.lab.referee.scenario import SCENARIOS, Ran, Requests, Scenario, draw, write_trace

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def test_there_are_twenty_scenarios_and_each_runs_here_or_says_why() -> None:
    assert len(BY_NAME) == len(SCENARIOS) >= 20
    refused = {s.name for s in SCENARIOS if ours.refuses(s)}
    assert refused == set()
    assert all(aisimulate.refuses(BY_NAME[name]) for name in ("switching", "failures"))
    assert [s.name for s in SCENARIOS if not vidur.refuses(replace(s, steps="own"))] == []


def test_reasons_are_of_scenarios_and_simulators_that_there_are() -> None:
    names = {simulator.NAME for simulator in SIMULATORS}
    for scenario, told in reasons().items():
        assert scenario in BY_NAME
        assert told.keys() <= names
        assert all(isinstance(text, str) and text for text in told.values())


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_requests_are_those_of_the_scenario(name: str, tmp_path: Path) -> None:
    scenario = replace(BY_NAME[name], requests=400)
    requests = draw(scenario, 3)
    again, other = draw(scenario, 3), draw(scenario, 4)
    assert (requests.arrival_s == again.arrival_s).all()
    assert (requests.arrival_s != other.arrival_s).any()
    assert (np.diff(requests.arrival_s) >= 0.0).all()
    assert scenario.prompt[0] <= requests.prompt.min() <= requests.prompt.max()
    assert requests.prompt.max() <= scenario.prompt[1]
    rate = len(requests.arrival_s) / requests.arrival_s[-1]
    assert 0.6 < rate / scenario.rate_rps < 1.7
    write_trace(scenario, requests, tmp_path / "trace")
    rows = [json.loads(line) for line in (tmp_path / "trace").read_text().splitlines()]
    assert [row["input_length"] for row in rows] == requests.prompt.tolist()
    keys = [tuple(row["hash_ids"]) for row in rows]
    shared = scenario.shared_tokens // 64
    beginnings = {key[:shared] for key in keys}
    assert len(beginnings) == (10 if shared else 1)
    rest = [k for key in keys for k in key[shared:]]
    assert len(set(rest)) == len(rest), "nothing else is shared"


def test_every_step_takes_what_was_asked_for(tmp_path: Path) -> None:
    scenario = replace(BY_NAME["equal_light"], requests=60)
    requests = draw(scenario, 0)
    write_trace(scenario, requests, tmp_path / "trace.jsonl")
    ran = ours.run(scenario, requests, tmp_path / "trace.jsonl", limit_s=300.0)
    tpot_s = (ran.end_s - ran.ttft_s)[requests.output > 1] / (
        requests.output[requests.output > 1] - 1
    )
    np.testing.assert_allclose(tpot_s, 0.02, rtol=1e-9)
    assert ran.ttft_s.min() >= 0.02
    assert 0 < ran.cpu_s < 300.0


# Stands for BLIS: a request's first token takes as many microseconds as its prompt has tokens.
BLIS = """#!{python}
import csv, json, sys
given = dict(zip((word[2:] for word in sys.argv[2::2]), sys.argv[3::2]))
assert sys.argv[1] == "replay" and given["hardware"] == "H100" and given["tp"] == "1"
rows = list(csv.DictReader(open(given["trace-data"])))
assert {{row["prefix_group"] for row in rows}} == {{f"group {{k}}" for k in range(10)}}
json.dump([{{"request_id": int(row["request_id"]), "e2e_us": 10 * int(row["output_tokens"]),
    "ttft_us": int(row["input_tokens"]) + int(row["prefix_length"])}} for row in rows[1:]],
    open(given["results-path"], "w"))
"""


def test_blis_gets_all_requests_and_lacks_those_it_did_not_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blis, "_FOLDER", tmp_path)
    monkeypatch.setattr(blis, "_version", lambda: "blis 1")
    scenario = replace(BY_NAME["prefixes"], requests=200)
    assert "not built" in blis.refuses(scenario)
    (tmp_path / "blis").write_text(BLIS.format(python=sys.executable))
    (tmp_path / "blis").chmod(0o755)
    assert {s.name for s in SCENARIOS if blis.refuses(s)} == {
        "b200", "equal_a100", "failures", "gb200", "rtx_pro_6000", "switching",
    }  # fmt: skip
    requests = draw(scenario, 0)
    ran = blis.run(scenario, requests, tmp_path / "trace.jsonl", limit_s=60.0)
    assert np.isnan([ran.ttft_s[0], ran.end_s[0]]).all()
    np.testing.assert_allclose(ran.ttft_s[1:], 1e-6 * requests.prompt[1:])
    np.testing.assert_allclose(ran.end_s[1:], 1e-5 * requests.output[1:])


def test_the_page_tells_differences_refusals_and_what_is_not_known() -> None:
    scenario = Scenario(name="none", asks="a question")
    requests = Requests(np.arange(4.0), np.full(4, 10), np.full(4, 11), np.zeros(4, np.int64))
    mine = Ran(np.full(4, 0.1), np.full(4, 1.1), 1.0, 2.0, "c2c 1")
    theirs = Ran(
        np.array([0.2, 0.2, 0.2, np.nan]), np.array([1.2, 1.2, 1.2, np.nan]), 5.0, 2.0, "x 2"
    )
    rows = [
        {"scenario": "none", "simulator": "c2c", **times_of(mine, requests)},
        {"scenario": "none", "simulator": "AISimulate", **times_of(theirs, requests)},
        {"scenario": "none", "simulator": "Vidur", "refused": "no profile"},
    ]
    assert rows[1]["served"] == 3
    assert {"refused", "served", "cpu_s"} <= set(_table(rows).column_names)
    page = as_page([scenario], rows)
    assert re.search(r"^\| \w+ \| AISimulate \| .* \| 3 of 4 \| 1 \|$", page, re.MULTILINE)
    assert "\n1. not known yet\n" in page
    assert "- Vidur refused: no profile (" in page
