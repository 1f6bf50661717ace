"""Bad rows: counted by kind, refused by default, dropped on request, never silent."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import DataError
from c2c.workloads import concatenate, describe
from tests.workloads.traces import build, stored

HEADER = "arrival_s,model,prompt_tokens,output_tokens\n"


def trace(tmp_path: Path, *rows: str) -> Path:
    return stored(tmp_path / "t.csv", HEADER + "".join(f"{row}\n" for row in rows))


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (",a,1,1", "missing_arrival"),
        ("soon,a,1,1", "unreadable_arrival"),
        ("nan,a,1,1", "nan_arrival"),
        ("inf,a,1,1", "infinite_arrival"),
        ("-1,a,1,1", "negative_arrival"),
        ("0.5,a,1,1", "unordered"),
        ("3,,1,1", "missing_model"),
        ("3,a,,1", "missing_tokens"),
        ("3,a,1,many", "unreadable_tokens"),
        ("3,a,NaN,1", "nan_tokens"),
        ("3,a,1,inf", "infinite_tokens"),
        ("3,a,-4,1", "negative_tokens"),
        ("3,a,1.5,1", "fractional_tokens"),
        ("3,a,0,1", "zero_prompt_tokens"),
        ("3,a,1,0", "zero_output_tokens"),
        ("3,a,1,99999999999", "too_many_tokens"),
        ("3,a,1,1,1,1", "malformed_line"),
    ],
)
def test_each_kind_is_refused_named_and_counted(tmp_path: Path, row: str, kind: str) -> None:
    path = trace(tmp_path, "1,a,5,6", "2,a,7,8", row, "4,b,9,9")
    with pytest.raises(DataError, match=rf"1 of 4 rows are bad: {kind} 1.*on_bad_row=skip"):
        build(path)
    workload = build(path, on_bad_row="skip")
    assert workload.description["bad_rows"] == {kind: 1}
    assert workload.description["used_rows"] == 3
    assert concatenate(workload.blocks()).arrival_s.tolist() == [1.0, 2.0, 4.0]


def test_requests_without_output_are_prefills_on_request(tmp_path: Path) -> None:
    path = trace(tmp_path, "1,a,5,6", "2,a,7,0", "3,a,8,0")
    with pytest.raises(DataError, match=r"workload.on_zero_output=prefill simulates prompts"):
        build(path)
    workload = build(path, on_zero_output="prefill")
    block = concatenate(workload.blocks())
    assert (block.prompt_tokens.tolist(), block.output_tokens.tolist()) == ([5, 7, 8], [6, 1, 1])
    assert "2 requests without output" in workload.description["doubts"][0]
    drawn = build(path, on_zero_output="prefill", lengths="fixed")
    assert concatenate(drawn.blocks()).output_tokens.tolist() == [128] * 3


def test_the_error_names_the_first_rows_of_a_kind(tmp_path: Path) -> None:
    rows = [f"{i},a,1,{0 if i % 2 else 1}" for i in range(12)]
    with pytest.raises(DataError, match=r"zero_output_tokens 6 \(rows 2, 4, 6, \.\.\.\)"):
        build(trace(tmp_path, *rows))


def test_replaced_lengths_are_not_judged(tmp_path: Path) -> None:
    path = trace(tmp_path, "1,a,5,0", "2,a,,8")
    workload = build(path, lengths="fixed", prompt_tokens=3, output_tokens=4)
    assert concatenate(workload.blocks()).prompt_tokens.tolist() == [3, 3]
    assert workload.description["bad_rows"] == {}


def test_equal_rows_are_requests_that_are_counted_or_refused(tmp_path: Path) -> None:
    path = trace(tmp_path, "1,a,5,6", "1,b,5,6", "1,a,5,6", "1,a,5,6", "2,a,5,6")
    workload = build(path)
    assert workload.description["duplicates"] == 2
    assert any("duplicates: 2 (on_duplicate=keep)" in line for line in describe(workload))
    assert len(concatenate(workload.blocks())) == 5
    with pytest.raises(DataError, match=r"2 of 5 rows are bad: duplicate 2 .*on_duplicate=keep"):
        build(path, on_duplicate="refuse")
    skipped = build(path, on_duplicate="refuse", on_bad_row="skip")
    assert len(concatenate(skipped.blocks())) == 3


def test_a_difference_in_any_column_is_no_duplicate(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.csv", "arrival_s,user\n1,u\n1,v\n")
    assert build(path, lengths="fixed").description["duplicates"] == 0


def test_duplicates_are_found_across_batches(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    arrival_s = np.concatenate([np.arange(65_536.0), [65_535.0, 65_535.0]])
    pq.write_table(pa.table({"arrival_s": arrival_s}), path)
    workload = build(path, on_bad_row="skip", on_duplicate="refuse", lengths="fixed")
    assert workload.description["bad_rows"] == {"duplicate": 2}
    assert len(concatenate(workload.blocks())) == 65_536


def test_sorting_makes_unordered_rows_good(tmp_path: Path) -> None:
    path = trace(tmp_path, "3,a,3,3", "1,b,1,1", ",b,9,9", "2,a,2,2", "1,b,1,1")
    with pytest.raises(DataError, match=r"unordered 3.*workload\.sort=true"):
        build(path)
    workload = build(path, sort=True, on_bad_row="skip", on_duplicate="refuse")
    assert concatenate(workload.blocks()).prompt_tokens.tolist() == [1, 2, 3]
    assert workload.description["reordered_rows"] == 3
    assert workload.description["bad_rows"] == {"missing_arrival": 1, "duplicate": 1}


def test_long_requests_can_be_bad_rows(tmp_path: Path) -> None:
    path = trace(tmp_path, "1,a,100,100", "2,a,1000,100")
    with pytest.raises(DataError, match="too_many_tokens 1"):
        build(path, max_total_tokens=1000)


def test_nulls_in_parquet_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    columns = {
        "arrival_s": pa.array([0.0, None, 1.0, float("nan")]),
        "model": pa.array(["a", "a", None, "a"]),
    }
    pq.write_table(pa.table(columns), path)
    found = build(path, on_bad_row="skip", lengths="fixed").description["bad_rows"]
    assert found == {"missing_arrival": 1, "missing_model": 1, "nan_arrival": 1}


def test_a_trace_with_no_good_row_is_refused_even_when_skipping(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no usable request in 2 rows: negative_arrival 2"):
        build(trace(tmp_path, "-1,a,1,1", "-2,a,1,1"), on_bad_row="skip")


CELLS = st.sampled_from(["0", "1", "2", "3.5", "7", "", "nan", "inf", "-2", "x", "1e3"])


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(CELLS, st.sampled_from(["a", "b", ""]), CELLS, CELLS), min_size=1))
def test_every_row_is_either_used_or_counted_once(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]]
) -> None:
    path = trace(tmp_path_factory.mktemp("t"), "0,a,1,1", *(",".join(row) for row in rows))
    workload = build(path, on_bad_row="skip", lengths="trace")
    said = workload.description
    block = concatenate(workload.blocks())  # blocks() checks order and ranges
    assert len(block) == said["used_rows"] == said["requests"]
    assert said["rows"] == len(rows) + 1 == said["used_rows"] + sum(said["bad_rows"].values())
    if said["bad_rows"]:
        with pytest.raises(DataError, match=f"{sum(said['bad_rows'].values())} of {said['rows']}"):
            build(path, lengths="trace")
