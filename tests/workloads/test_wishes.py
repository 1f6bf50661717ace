"""Limits, priorities, deadlines and cancels of a trace's requests, from the file to the records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from c2c.config import build, load, simulate
from c2c.errors import DataError
from c2c.workloads import OF_MODEL, Workload, concatenate, write_trace
from tests.workloads.traces import stored

HEAD = "arrival_s,prompt_tokens,output_tokens,max_output_tokens,priority,deadline_s,cancel_s\n"


def _workload(path: Path, rows: str, *settings: str) -> Workload:
    path.write_text(HEAD + rows)
    return build(load(["workload=file", f"workload.path={path}", *settings])).workload


def test_columns_are_read_written_and_read_again(tmp_path: Path) -> None:
    workload = _workload(tmp_path / "a.csv", "0,9,5,20,-2,1.5,\n1,9,7,,,,0.25\n2,9,1,1,3,,\n")
    block = concatenate(workload.blocks())
    write_trace(tmp_path / "b.parquet", workload)
    again = build(load(["workload=file", f"workload.path={tmp_path / 'b.parquet'}"])).workload
    for one in (block, concatenate(again.blocks())):
        assert one.max_output_tokens is not None
        assert one.max_output_tokens.tolist() == [20, 7, 1]
        assert one.priority is not None
        assert one.priority.tolist() == [-2, OF_MODEL, 3]
        np.testing.assert_array_equal(one.deadline_s, [1.5, np.inf, np.inf])
        np.testing.assert_array_equal(one.cancel_s, [np.inf, 0.25, np.inf])


@pytest.mark.parametrize(
    ("row", "kind"),
    [("0,9,5,4,,,", "limit_below_output 1"), ("0,9,5,,1.5,,", "unreadable_priority 1"),
     ("0,9,5,,,0,", "unreadable_deadline_s 1"), ("0,9,5,,,,soon", "unreadable_cancel_s 1"),
     ("0,9,5,inf,,,", "unreadable_max_output_tokens 1")],
)  # fmt: skip
def test_a_cell_that_cannot_be_is_a_bad_row(tmp_path: Path, row: str, kind: str) -> None:
    with pytest.raises(DataError, match=kind):
        _workload(tmp_path / "a.csv", row + "\n")


def test_the_simulator_heeds_them(tmp_path: Path) -> None:
    rows = "0,100,50,2000,,,\n0.1,100,400,,,0.5,\n0.2,100,400,,,,0.6\n0.3,100,5,,,,50\n"
    path = stored(tmp_path / "a.csv", HEAD + rows)
    setup = build(load(["workload=file", f"workload.path={path}", "mig=7x12gb"]))
    table = simulate(setup, compiled=False).requests.sort_by("id")
    reasons = ["", "deadline", "cancelled", ""]
    assert [reason or "" for reason in table["reason"].to_pylist()] == reasons
    assert table["output_tokens"].to_pylist()[::3] == [50, 5]
    assert max(table["output_tokens"].to_pylist()[1:3]) < 400
