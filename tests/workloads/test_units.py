"""Times in the unit that a column's name tells, dates and numbers as people write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c2c.errors import DataError, SettingError
from c2c.workloads import Workload, concatenate, describe, doubts
from c2c.workloads.names import UNITS, unit_of
from tests.workloads.traces import build, stored

AT = [0.0, 0.5, 2.0, 7.25]
NAMES = {
    "arrival (s)": "s", "start_seconds": "s", "arrival_time_sec": "s", "t_s": "s",
    "arrival_ms": "ms", "timestamp (ms)": "ms", "TimestampMs": "ms", "timems": "ms",
    "ts_rel_ms": "ms", "time in milliseconds": "ms", "sent_at_millis": "ms",
    "arrival_time_us": "us", "arrival_µs": "us", "submit_time_micros": "us",
    "arrival_ns": "ns", "startTimeUnixNano": "ns", "time [nanoseconds since start]": "ns",
    "arrival (min)": "min", "arrival_hours": "h", "arrival_days": "d",
}  # fmt: skip


def table(path: Path, name: str, cells: list[Any], delimiter: str = ",") -> Path:
    rows = [[name, "model", "input_tokens", "output_tokens"]]
    rows += [[str(cell), "ab"[k % 2], f"{10 + k}", f"{20 + k}"] for k, cell in enumerate(cells)]
    path.write_text("".join(delimiter.join(row) + "\n" for row in rows))
    return path


def arrivals(workload: Workload) -> list[float]:
    block = concatenate(workload.blocks())
    assert block.prompt_tokens.tolist() == [10 + k for k in range(len(block))]
    assert block.output_tokens.tolist() == [20 + k for k in range(len(block))]
    return block.arrival_s.tolist()


def times_line(workload: Workload) -> str:
    (line,) = (line for line in describe(workload) if line.startswith("times: "))
    return line


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mapped", [False, True])
def test_a_unit_in_a_name_is_taken_and_said(tmp_path: Path, name: str, mapped: bool) -> None:
    per_second = UNITS[NAMES[name]]
    path = table(tmp_path / "t.csv", name, [f"{at * per_second:.15f}" for at in AT])
    told = {"arrival_s": name, "prompt_tokens": "input_tokens"} if mapped else {}
    workload = build(path, columns=told)
    np.testing.assert_allclose(arrivals(workload), AT, atol=1e-6)
    words = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds",
             "min": "minutes", "h": "hours", "d": "days"}  # fmt: skip
    assert times_line(workload).startswith(f"times: {words[NAMES[name]]} (")
    assert "4 requests from t.csv, 7.25 s, " in describe(workload)[0]


@pytest.mark.parametrize(
    "name", ["status", "arrivals", "times", "focus", "region_us_arrival", "ts", "users", "when"]
)
def test_a_name_without_a_unit_has_none(name: str) -> None:
    assert unit_of(name) is None


def test_a_name_counts_unless_its_times_are_impossible(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    # 28 minutes after the zero in microseconds, though the number is one of seconds since 1970.
    late = table(path, "arrival_us", [1_700_000_000 + k * 10**6 for k in range(3)])
    assert arrivals(build(late)) == [0, 1, 2]
    assert arrivals(build(late, time_unit="ms")) == [0, 1000, 2000]
    wrong = table(path, "start_s", [1_700_000_000_000 + k * 1000 for k in range(3)])
    assert arrivals(build(wrong)) == [0, 1, 2]
    assert "milliseconds since 1970 (although the column is start_s)" in times_line(build(wrong))
    nano = table(path, "startUnixNano", [(1_700_000_000 + k) * 10**9 for k in range(3)])
    assert times_line(build(nano)).startswith("times: nanoseconds since 1970; 0 is the first")


@pytest.mark.parametrize("named", ["when", "time"])
def test_a_low_load_in_assumed_seconds_asks_for_its_unit(tmp_path: Path, named: str) -> None:
    told = {"arrival_s": named}
    path = table(tmp_path / "t.csv", named, [0, 2_000_000, 14_400_000])
    with pytest.raises(
        SettingError,
        match=rf"workload\.time_unit='auto': expected one of s, ms, us, ns.*column '{named}': in "
        r"seconds, 3 requests would take 4,000 h",
    ):
        build(path, columns=told)
    assert arrivals(build(path, columns=told, time_unit="us")) == [0, 2, 14.4]
    assert arrivals(build(path, columns=told, time_unit="s")) == [0, 2e6, 14.4e6]
    # Whole numbers, two a second in milliseconds: 0.002 a second would be "served" by any fleet.
    path = table(tmp_path / "t.csv", named, [490 * k for k in range(400)])
    with pytest.raises(SettingError, match=r"would take 54\.3 h, in milliseconds 196 s"):
        build(path, columns=told)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([0, 3600.5, 10_799.5], False),
        ([0, 20, 45], True),
        ([0, 20.5, 45], False),
        ([0, 1, 2], False),
    ],
)
def test_a_low_load_that_seconds_may_have_is_said(
    tmp_path: Path, cells: list[float], said: bool
) -> None:
    workload = build(table(tmp_path / "t.csv", "time", cells))
    assert "seconds (assumed for column time; or set workload.time_unit)" in times_line(workload)
    line = "column time is read as seconds, a request every 15 s; "
    assert [found.startswith(line) for found in doubts(workload)] == [True] * said


def test_a_formats_own_column_keeps_its_unit_when_named_by_hand(tmp_path: Path) -> None:
    rows = [{"timestamp": 500 * k, "input_length": 10 + k, "output_length": 20 + k}
            for k in range(3)]  # fmt: skip
    path = stored(tmp_path / "t.jsonl", "\n".join(map(json.dumps, rows)))
    assert arrivals(build(path, columns={"arrival_s": "timestamp"})) == [0, 0.5, 1]
    # Other lengths, so perhaps another format: nothing tells the unit.
    path.write_text(path.read_text().replace("input_length", "input_tokens"))
    with pytest.raises(SettingError, match="Nothing tells the unit of column 'timestamp'"):
        build(path, columns={"arrival_s": "timestamp"})


@pytest.mark.parametrize(
    "form",
    ["2026-09-10 08:00:{:06.3f} UTC", "2026-09-10 08:00:{:06.3f} +0000",
     "2026-09-10T08:00:{:06.3f}+0000", "2026-09-10 10:00:{:06.3f}+02", "2026/09/10 08:00:{:06.3f}",
     "2026-09-10T08:00:{:06.3f} Z", "2026-09-10 02:30:{:06.3f} -05:30",
     "2026-09-10 08:00:{:06.3f} GMT"],
)  # fmt: skip
@pytest.mark.parametrize("decimal", [".", ","])
def test_dates_with_zones_in_any_form(tmp_path: Path, form: str, decimal: str) -> None:
    cells = [form.format(at).replace(".", decimal) for at in AT]
    path = table(tmp_path / "t.csv", "Timestamp", cells, delimiter=";")
    np.testing.assert_allclose(arrivals(build(path)), AT, atol=1e-9)
    assert "dates; 0 is the first request" in times_line(build(path))


def test_zones_may_be_mixed_and_names_of_zones_are_not_guessed(tmp_path: Path) -> None:
    cells = ["2026-09-10 08:00:00 UTC", "2026-09-10 10:00:01+0200", "2026-09-10T08:00:02Z"]
    assert arrivals(build(table(tmp_path / "t.csv", "time", cells))) == [0, 1, 2]
    path = table(tmp_path / "t.csv", "time", [*cells, "2026-09-10 08:00:03 CET"])
    with pytest.raises(DataError, match=r"unreadable_arrival 1 \(rows 4\)"):
        build(path)


@pytest.mark.parametrize("separator", [",", "'", " ", "_", "\u00a0", "\u202f"])
def test_thousands_may_have_separators(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "t.csv"
    counts = [999, 1234, 12_345, 1_234_567]
    cells = [f'"{count:,}"'.replace(",", separator) for count in counts]
    path.write_text("arrival_s,in,out\n" + "".join(f"{k},{c},5\n" for k, c in enumerate(cells)))
    assert concatenate(build(path).blocks()).prompt_tokens.tolist() == counts


@pytest.mark.parametrize("cell", ["1,23", "12,34,567", "1,2345", "0,123", "1.234", "1,234.5"])
def test_other_separators_are_bad_rows(tmp_path: Path, cell: str) -> None:
    with pytest.raises(DataError, match=r"(unreadable|fractional)_tokens 1 \(rows 3\)"):
        build(stored(tmp_path / "t.csv", f'arrival_s,in,out\n0,5,5\n1,6,6\n2,"{cell}",5\n'))


def test_a_comma_is_a_decimal_point_where_semicolons_separate(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "time", ["0,5", "1,250", "2", " 3,125 "], delimiter=";")
    assert arrivals(build(path)) == [0, 0.75, 1.5, 2.625]
    with pytest.raises(DataError, match=r"fractional_tokens 1 \(rows 3\)"):
        build(stored(path, "time;in;out\n0;5;6\n1;7;8\n2;1,234;5\n"))


@pytest.mark.parametrize("spelled", [("Prompt Length", "Output Length"), ("prompt_length",) * 2])
def test_lists_of_requests_are_requests_at_their_groups_time(
    tmp_path: Path, spelled: tuple[str, str]
) -> None:
    prompt, output = spelled[0], spelled[1].replace("prompt", "output")
    groups = [(1000, [(5, 6), (7, 8)]), (1500, []), (4500, [(9, 3)])]
    lines = [
        {"timestamp": at, "requests": [{prompt: p, output: o, "prompt": "..."} for p, o in pairs]}
        for at, pairs in groups
    ]
    path = stored(tmp_path / "t.jsonl", "\n".join(map(json.dumps, lines)))
    for told in ({}, {"arrival_s": "timestamp"}):
        workload = build(path, columns=told)
        block = concatenate(workload.blocks())
        assert block.arrival_s.tolist() == [0, 0, 3.5]
        assert (block.prompt_tokens.tolist(), block.output_tokens.tolist()) == (
            [5, 7, 9],
            [6, 8, 3],
        )
        assert "milliseconds (format aibrix; " in times_line(workload)
    path.write_text(path.read_text().replace('"requests"', '"batch"'))
    with pytest.raises(DataError, match="no output_tokens; lists of records are in 'batch'"):
        build(path)


# Rows of the table of public forms: requests, seconds, prompt and output tokens.
SHARED = {
    "times_us.csv": (12, 6.801842, 5_788, 565),
    "times_ms.csv": (12, 14.99, 4_658, 667),
    "lists_of_requests.jsonl": (12, 7.622, 4_450, 611),
    "dates_utc.csv": (8, 7.354047, 1_848, 381),
    "texts_and_counts.json": (6, 6.0067, 3_200, 188),
}


@pytest.mark.parametrize("name", SHARED)
def test_public_forms_of_traces_are_read(shared_part: Callable[[str], Path], name: str) -> None:
    path = shared_part(f"cases2/simulator/{name}")
    block = concatenate(build(path).blocks())
    span_s = float(block.arrival_s[-1] - block.arrival_s[0])
    sums = int(block.prompt_tokens.sum()), int(block.output_tokens.sum())
    assert (len(block), pytest.approx(span_s), *sums) == SHARED[name]
