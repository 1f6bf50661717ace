import gzip
import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from c2c.errors import DataError
from c2c.metrics import PHASE_SCHEMA, phase_table, write_timeline


def phases() -> pa.Table:
    return phase_table(
        {
            "chip": np.array([0, 0, 1]), "instance": np.array([0, 1, 2]),
            "model": np.array([0, 1, 0]), "kind": np.array([0, 1, 4]),
            "start_s": np.array([0.0, 0.5, 0.25]), "end_s": np.array([1.0, 1.5, 2.25]),
            "tokens": np.array([512, 8, 0]), "seqs": np.array([1, 8, 0]),
            "steps": np.array([1, 20, 1]), "alpha": np.array([0.5, 1.0, np.nan]),
            "link_gbps": np.array([100.0, 50.0, 300.0]),
        },
        {"model": ["llama", 'a "quoted" name']},
    )  # fmt: skip


def written(table: pa.Table, **more: Any) -> tuple[bytes, dict[str, Any]]:
    stream = io.BytesIO()
    count = write_timeline(table, stream, **more)
    loaded = json.loads(gzip.decompress(stream.getvalue()))
    assert len(loaded["traceEvents"]) == count
    return stream.getvalue(), loaded


def test_one_track_an_instance_and_one_slice_a_phase() -> None:
    _, trace = written(phases(), instance_names={0: "1g.12gb #0"})
    events = trace["traceEvents"]
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks == {(0, 0): "1g.12gb #0", (0, 1): "instance 1", (1, 2): "instance 2"}
    slices = [e for e in events if e["ph"] == "X"]
    assert [e["name"] for e in slices] == ["llama prefill", "llama load", 'a "quoted" name decode']
    assert slices[0]["dur"] == pytest.approx(1e6)
    assert slices[1]["args"]["alpha"] is None


def test_link_counter_is_the_sum_over_instances() -> None:
    _, trace = written(phases(), link_capacity_gbps=200.0)
    counters = [e for e in trace["traceEvents"] if e["ph"] == "C" and e["pid"] == 0]
    rate = [(e["ts"], e["args"]["value"]) for e in counters if e["name"].startswith("link GB/s")]
    assert rate == [(0.0, 100.0), (5e5, 150.0), (1e6, 50.0), (1.5e6, 0.0)]
    share = [e["args"]["value"] for e in counters if e["name"].endswith("%")]
    assert share == [50.0, 75.0, 25.0, 0.0]


def test_equal_tables_give_equal_bytes() -> None:
    assert written(phases())[0] == written(phases())[0]


def test_no_phases_is_still_a_trace_and_missing_columns_are_named() -> None:
    assert written(PHASE_SCHEMA.empty_table())[1]["traceEvents"] == []
    with pytest.raises(DataError, match="alpha"):
        write_timeline(phases().drop_columns(["alpha"]), io.BytesIO())
