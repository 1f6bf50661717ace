"""A step's machine code placed over two devices from the command line: no bit differs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from c2c.systems.tessera import Touch
from experiments.children import ROOT
from experiments.papers.tessera import placed_step

STEP = f"step={ROOT}/tests/systems/program/xla/decode"


@pytest.mark.parametrize("policy", ["throughput", "latency"])
def test_a_placed_step_has_the_outputs_of_each_device(
    policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert placed_step.main([STEP, "tokens=4", f"policy={policy}", "seed=3"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if " equal" in line]
    launches = [[int(number) for number in row[1:3]] for row in rows]
    assert [sum(pair) for pair in launches] == [58, 58, 58]
    assert launches[:2] == [[58, 0], [0, 58]]
    assert all(row[-4:] == ["3", "of", "3", "equal"] for row in rows)
    busiest_ms = [float(row[-5]) for row in rows]
    if policy == "throughput":
        assert min(launches[2]) > 0
        assert busiest_ms[2] < min(busiest_ms[:2])


def test_a_dependency_that_is_left_out_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = placed_step.analysed

    def without_reads(*arguments: Any) -> tuple[Any, Sequence[Touch]]:
        xla, touches = whole(*arguments)
        given = set(xla.program.inputs)
        return xla, [replace(t, reads=tuple(p for p in t.reads if p in given)) for t in touches]

    monkeypatch.setattr(placed_step, "analysed", without_reads)
    assert placed_step.main([STEP, "tokens=4"]) == 1
    assert re.search(r"[0-2] of 3 equal", capsys.readouterr().out)
