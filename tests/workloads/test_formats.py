"""Each supported format, recognised by its columns and read to the same requests."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from c2c.errors import DataError, SettingError
from c2c.workloads import build_workload, concatenate
from c2c.workloads.formats import open_trace
from tests.workloads.traces import CATALOG, stored

DRAWN = {"lengths": "fixed"}

CSV = {
    "c2c": "arrival_s,model,prompt_tokens,output_tokens,note\n"
    "0.5,a,10,20,x\n1.5,b,11,21,y\n2.5,a,12,22,z\n",
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,10,20\n2023-11-16 18:15:47.6805901,11,21\n"
    "2023-11-16 18:15:48.6805902,12,22\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,10,20,30,Conversation log\n6,GPT-4,11,21,32,API log\n7,ChatGPT,12,22,34,API log\n",
    "gentd26": "gmt_create,predict_type,checkpoint_model_version_id\n"
    "2024-11-15 16:57:50,TXT_2_IMG,M1\n2024-11-15 16:57:51,TXT_2_IMG,M2\n"
    "2024-11-15 16:57:52,IMG_2_IMG,M1\n",
}


def read(path: Path, **settings: object) -> tuple[np.ndarray, ...]:
    config = {"kind": "trace", "path": str(path), **settings}
    block = concatenate(build_workload(config, CATALOG, 0).blocks())
    return block.arrival_s, block.model, block.prompt_tokens, block.output_tokens


@pytest.mark.parametrize("name", CSV)
def test_csv_is_recognised_by_its_columns(tmp_path: Path, name: str) -> None:
    path = stored(tmp_path / "t.csv", CSV[name])
    assert open_trace(path).format.name == name
    arrival_s, model, prompt, output = read(path, **DRAWN if name == "gentd26" else {})
    first = 0.5 if name == "c2c" else 0.0  # the project's own times are kept as they stand
    np.testing.assert_allclose(arrival_s, first + np.arange(3), atol=1e-6)
    assert model.tolist() == ([0, 0, 0] if name == "azure" else [0, 1, 0])
    if name != "gentd26":
        assert (prompt.tolist(), output.tolist()) == ([10, 11, 12], [20, 21, 22])


def test_azure_keeps_the_seventh_decimal_and_reads_time_zones(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.csv", CSV["azure"])
    assert read(path)[0][1] == 1.0000001
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,1,2\n"
        "2024-05-10 02:00:00.509930+02:00,3,4\n"
    )
    assert read(path)[0].tolist() == [0.0, 0.5]


def test_gzipped_csv_reads_like_plain(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.csv.gz", gzip.compress(CSV["c2c"].encode()))
    assert read(path)[2].tolist() == [10, 11, 12]


@pytest.mark.parametrize(
    "arrival", [pa.array([1.0, 2.0, 4.0]), pa.array([1, 2, 4]), pa.array(["1", "2.0", "4"])]
)
def test_parquet_types_do_not_matter(tmp_path: Path, arrival: pa.Array) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table(
        {
            "arrival_s": arrival,
            "model": pa.array(["b", "a", "b"]).dictionary_encode(),
            "prompt_tokens": pa.array([5.0, 6.0, 7.0]),
            "output_tokens": pa.array([1, 2, 3], pa.int64()),
            "nested": pa.array([[1], [], None]),
        }
    )
    pq.write_table(table, path)
    arrival_s, model, prompt, output = read(path)
    assert arrival_s.tolist() == [1.0, 2.0, 4.0]
    assert (model.tolist(), prompt.tolist(), output.tolist()) == ([0, 1, 0], [5, 6, 7], [1, 2, 3])


def test_parquet_timestamps_count_from_the_first(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    times = pa.array([10_000, 12_500], pa.timestamp("ms", "Europe/Berlin"))
    pq.write_table(pa.table({"arrival_s": times}), path)
    assert read(path, **DRAWN)[0].tolist() == [0.0, 2.5]


def test_other_columns_can_be_named(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.csv", "when,svc,in,out\n3,a,10,20\n4,b,11,21\n")
    columns = {"arrival_s": "when", "model": "svc", "prompt_tokens": "in", "output_tokens": "out"}
    arrival_s, model, prompt, _ = read(path, columns=columns)
    assert arrival_s.tolist() == [0.0, 1.0]
    assert (model.tolist(), prompt.tolist()) == ([0, 1], [10, 11])


def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    def refused(name: str, content: bytes, match: str, **settings: object) -> None:
        path = stored(tmp_path / name, content)
        with pytest.raises(DataError, match=match):
            read(path, **settings)

    refused("e.csv", b"", "empty")
    refused("h.csv", b"arrival_s,model\n", "no usable request in 0 rows")
    refused("c.csv", b"a,b\n1,2\n", "fit no known format")
    refused("c.csv", b"a,b\n1,2\n", "no column 'x'", columns={"arrival_s": "x"})
    refused("d.csv", b"arrival_s,arrival_s\n1,2\n", "more than once")
    refused("u.csv", b"arrival_s,model\n1,\xff\xfe\n", "cannot be read")
    refused("p.parquet", b"not parquet at all", "PAR1")
    refused("q.parquet", b"PAR1 broken PAR1", "cannot be read")
    refused("l.json", b'[{"prompt_len": 1}]', "arrivals")
    refused("n.csv", b"arrival_s\n1\n", "no prompt_tokens and no output_tokens", lengths="trace")
    with pytest.raises(SettingError, match=r"workload\.path"):
        read(tmp_path / "absent.csv")


def test_a_parquet_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"arrival_s": np.arange(1000.0)}), path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"t\.parquet: cannot be read"):
        read(path)


def test_settings_about_format_are_checked(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.csv", CSV["c2c"])
    with pytest.raises(SettingError, match=r"workload\.format='xml'"):
        read(path, format="xml")
    with pytest.raises(SettingError, match="fields among"):
        read(path, columns={"arrivals": "arrival_s"})
    with pytest.raises(DataError, match="TIMESTAMP"):
        read(path, format="azure")
