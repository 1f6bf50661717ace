from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.runs import ParquetStream, atomic_file, write_json, write_parquet
from c2c.runs.tables import ROW_GROUP

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.dictionary(pa.int32(), pa.string()))])


def rows(first: int, count: int) -> pa.Table:
    x = list(range(first, first + count))
    names = pa.array([f"m{v % 3}" for v in x], pa.string()).dictionary_encode()
    return pa.Table.from_arrays([pa.array(x, pa.int64()), names], schema=SCHEMA)


def test_batches_do_not_show_in_the_bytes(tmp_path: Path) -> None:
    total = 2 * ROW_GROUP + 1000
    for name, step in (("a", 50_000), ("b", 300_000)):
        with ParquetStream(tmp_path / name, SCHEMA) as stream:
            for first in range(0, total, step):
                stream.append(rows(first, min(step, total - first)))
        assert stream.rows == total
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert pq.read_table(tmp_path / "a")["x"].to_pylist() == list(range(total))


def test_empty_stream_is_a_table(tmp_path: Path) -> None:
    with ParquetStream(tmp_path / "t", SCHEMA):
        pass
    assert pq.read_table(tmp_path / "t").num_rows == 0


def test_failed_stream_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="schema"), ParquetStream(tmp_path / "t", SCHEMA) as stream:
        stream.append(pa.table({"y": [1]}))
    assert list(tmp_path.iterdir()) == []


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})

    def fail_half_way() -> None:
        with atomic_file(path) as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail_half_way()
    assert path.read_text() == '{\n  "a": 1\n}\n'
    assert list(tmp_path.iterdir()) == [path]


@given(st.lists(st.integers(-(2**40), 2**40), max_size=20))
def test_round_trip(values: list[int]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.parquet"
        table = pa.table({"x": pa.array(values, pa.int64())})
        write_parquet(path, table)
        assert pq.read_table(path).equals(table)
