"""Verdicts on made-up rows: each outcome that a first run on a GPU can have."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.lab.gpu import verdicts
from experiments.lab.gpu.cases import Row
from tests.experiments.gpu import made_up


def statuses(rows: list[Row]) -> dict[str, str]:
    return {one.aim.partition(":")[0]: one.status for one in verdicts.findings(rows)[1:]}


def test_perfect_rows_pass_every_claim() -> None:
    rows = made_up.rows()
    assert {one.status for one in verdicts.findings(rows)} == {"pass"}
    line = "decode: kernel pass, copy engine pass; choice pass; mixing pass"
    assert verdicts.verdict(rows) == line
    assert line in verdicts.summary(rows, [{"device": "NVIDIA H200"}])


def test_a_host_on_which_sms_read_slowly() -> None:
    rows = made_up.rows(sm_gbps=38.0)
    expected = "decode: kernel pass, copy engine 0.69; choice pass; mixing pass"
    assert verdicts.verdict(rows) == expected


def test_without_a_probe_the_kernel_is_judged_by_copies_alone() -> None:
    rows = [row for row in made_up.rows(sm_gbps=38.0) if row["stage"] != "probe"]
    assert verdicts.verdict(rows).startswith("decode: kernel unmeasured, copy engine 0.69;")


@pytest.mark.parametrize(
    ("spoil", "claim"),
    [
        (lambda r: r["stage"] == "decode" and r.get("m") == 16, "decode"),
        (lambda r: r.get("what") == "chosen" and r["m"] == 2048, "choice"),
        (lambda r: r["stage"] == "mix" and r["alpha"] == 0.5625, "mixing"),
        (lambda r: r.get("what") == "chosen" and r["m"] == 512, "M from 512"),
    ],
)
def test_one_slow_case_fails_its_claim(spoil: Any, claim: str) -> None:
    rows = [r | {"time_s": 2 * r["time_s"]} if spoil(r) else r for r in made_up.rows()]
    assert statuses(rows)[claim] == "fail"


def test_a_lost_or_missing_case_is_no_pass() -> None:
    rows = made_up.rows()
    lost = [r | {"status": "failed"} if r.get("m") == 64 else r for r in rows]
    assert statuses(lost)["decode"] == "unmeasured"
    broken = [r | {"status": "failed", "lost": "hung"} if "test" in r else r for r in rows]
    assert statuses(broken)["correct"] == "fail"
    assert "hung" in verdicts.summary(broken, [])
    assert {one.status for one in verdicts.findings([])} == {"unmeasured"}


def test_dry_runs_are_no_measurements() -> None:
    rows = [row | {"dry_run": True} for row in made_up.rows()]
    assert {one.status for one in verdicts.findings(rows)} == {"unmeasured"}
    assert "A dry run" in verdicts.summary(rows, [])


def test_mixing_is_judged_by_the_model_at_the_measured_rates() -> None:
    def mixing(rows: list[Row]) -> verdicts.Finding:
        return next(one for one in verdicts.findings(rows) if one.aim.startswith("mixing"))

    over_pcie, over_c2c = mixing(made_up.rows()), mixing(made_up.rows(327.0, 346.0))
    assert over_pcie.measured.endswith("faster than both in 0 of 3 cells")
    assert (over_c2c.status, "in 1 of 3 cells" in over_c2c.measured) == ("pass", True)
    assert mixing([r for r in made_up.rows() if r["stage"] != "mix"]).status == "unmeasured"
