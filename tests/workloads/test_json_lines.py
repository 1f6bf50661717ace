"""JSON lines by Arrow's reader: the requests, counts and messages of the slower reader, or it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import DataError, SettingError
from c2c.workloads import build_workload, concatenate, records
from c2c.workloads.json_lines import arrow_table
from tests.workloads.traces import stored

COUNT = st.integers(1, 3000)
FRACTION = st.integers(1, 10**6).map(lambda n: n / 7 if n % 7 else n + 0.5)
TEXT = st.sampled_from(["a", "b", "", " c", "5", "2024-01-01", "2024-01-01T00:00:05Z", "é\n\u0000"])
LIST = st.lists(st.integers(0, 9), max_size=4)
HASHES = st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([-1, 2**63, 2**64, 0.5]), max_size=4)
OBJECT = st.fixed_dictionaries({"x": COUNT}, optional={"y": st.fixed_dictionaries({"z": TEXT})})
# A column has one kind of values, as files do, or any of them.
KINDS = [COUNT, FRACTION, TEXT, LIST, HASHES, OBJECT, st.booleans(), st.none(), COUNT | st.none()]
ANY = st.one_of(*KINDS, st.integers(2**62, 2**66), st.lists(TEXT | FRACTION | LIST, max_size=2))
TIMES = [
    COUNT, FRACTION, FRACTION.map(lambda at: 1.7e9 + at), COUNT.map(lambda at: 1_700_000_000 + at),
    COUNT.map(lambda at: f"2024-01-01 00:{at // 60:02}:{at % 60:02}.5"),
]  # fmt: skip
LIKELY = {
    "timestamp": st.sampled_from(TIMES), "input_length": st.just(COUNT),
    "output_length": st.just(COUNT), "hash_ids": st.sampled_from([LIST, HASHES]),
    "model": st.just(TEXT),
}  # fmt: skip
NAMES = (*LIKELY, "session_id", "turn", "usage", "note", " spaced ")
ODD = st.sampled_from(
    ["", "  ", "{", "[1]", "5", '{"a":1}{"b":2}', '{"a":\n1}', ' {"timestamp": 3}', "{}",
     '{"timestamp": NaN}', '{"timestamp": Infinity}', '{"timestamp":1,"timestamp":2}',
     '{"a":1e400}',
     '{"note":"\\ud800"}', '{"requests":[{"model":"a"}]}', '{"requests":[]}', '{"input_lens":[1]}']
)  # fmt: skip


@st.composite
def files(draw: st.DrawFn) -> bytes:
    kinds = {
        name: draw(LIKELY[name] if name in LIKELY and draw(st.integers(0, 4)) else
                   st.sampled_from([*KINDS, ANY]))
        for name in NAMES
    }  # fmt: skip
    rows = draw(st.lists(st.fixed_dictionaries({}, optional=kinds), min_size=1, max_size=9))
    lines = [json.dumps(row, ensure_ascii=draw(st.booleans())) for row in rows]
    for odd in draw(st.lists(ODD, max_size=1)) if draw(st.integers(0, 3)) == 0 else []:
        lines.insert(draw(st.integers(0, len(lines))), odd)
    ends = draw(st.sampled_from(["\n", "\r\n"]))
    before = draw(st.sampled_from(["", "", "\ufeff"]))
    return (before + ends.join(lines) + draw(st.sampled_from(["", ends]))).encode()


def read(path: Path, **said: Any) -> Any:
    """Return all that a workload is, or its error."""
    told = {"kind": "trace", "path": str(path), "on_bad_row": "skip", "sort": True, **said}
    try:
        workload = build_workload(told, ("a", "b"), 0)
    except (DataError, SettingError) as error:
        return type(error), str(error)
    found = json.loads(json.dumps(dict(workload.description)))
    found["columns_not_used"].sort()
    block = concatenate(workload.blocks())
    return found, [repr(getattr(block, name)) for name in block.__slots__]


@settings(max_examples=150)
@given(content=files(), lengths=st.sampled_from(["auto", "auto", "fixed"]))
def test_both_readers_agree(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, lengths: str
) -> None:
    path = stored(tmp_path_factory.mktemp("t") / "t.jsonl", content)
    quick = read(path, lengths=lengths)
    with patch.object(records, "arrow_table", lambda _: None):
        assert quick == read(path, lengths=lengths)


def test_a_usual_trace_is_read_by_arrow_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [
        {"timestamp": at, "input_length": 5 + at, "output_length": 7, "hash_ids": [at, at + 1],
         "ok": True, "note": "2024-01-01", "usage": {"cached": None}, "ttft": at / 8}
        for at in range(40_000)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert path.stat().st_size > 5 << 20  # more than one piece
    table = arrow_table(path)
    assert table is not None
    assert table.num_rows == len(rows)
    assert pa.types.is_list(table.schema.field("hash_ids").type)
    assert pa.types.is_string(table.schema.field("note").type)
    assert table["usage.cached"].null_count == len(rows)
    with path.open("a") as file:
        file.write('{"timestamp": "soon"}\n')  # another type, in the last piece
    assert arrow_table(path) is None
    assert read(path)[0]["bad_rows"] == {"unreadable_arrival": 1}


@pytest.mark.parametrize("at", [0, 29_999])  # in the first piece, in a later one
def test_hashes_of_64_bits_are_exact(tmp_path: Path, at: int) -> None:
    path, hashes = tmp_path / "t.jsonl", [[2**64 - 1 - k if k == at else k] for k in range(60_000)]
    row = '{{"timestamp": 1, "note": "' + "." * 99 + '", "hash_ids": {}}}\n'
    table = arrow_table(stored(path, "".join(map(row.format, hashes))))
    assert table is not None
    assert table["hash_ids"].to_pylist() == hashes


@pytest.mark.parametrize("depth", [400, 5000, 200_000])
@pytest.mark.parametrize("form", [("[", "]"), ('{"a":', "}"), ("[[],", "]")])
def test_lines_of_many_levels_end_no_process(
    tmp_path: Path, depth: int, form: tuple[str, str]
) -> None:
    opening, closing = form
    path = stored(tmp_path / "t.jsonl", f'{{"a":{opening * depth}1{closing * depth}}}')
    done = subprocess.run(
        [sys.executable, "-c", "import sys, pathlib, c2c.workloads.json_lines as j;"
         "print(j.arrow_table(pathlib.Path(sys.argv[1])) is None)", path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ({"True"} if depth > 400 else {"True", "False"})


def test_traces_need_no_pandas(tmp_path: Path) -> None:
    rows = [
        {"arrival_s": float(k), "model": "ab"[k % 2], "prompt_tokens": 5, "output_tokens": 6,
         "hash_ids": [1, 2]} for k in range(4)
    ]  # fmt: skip
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "t.csv").write_text('ts,model,in,out\n0,a,"1,234",6\n1,b,7,8\n')
    # Writing Parquet from Python's values imports pandas, so it is done here.
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    code = """
import sys
from c2c.workloads import build_workload, concatenate
for path in sys.argv[1:]:
    told = {"kind": "trace", "path": path, "block_tokens": 0 if path.endswith("csv") else 4}
    concatenate(build_workload(told, ("a", "b"), 0).blocks())
print("pandas" in sys.modules)
"""
    paths = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run(
        [sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
