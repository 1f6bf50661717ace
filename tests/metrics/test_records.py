"""Records in parts: the summary of the whole, the verdict of the worst, stretches of time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from c2c.metrics import Records, summarise
from tests.metrics.test_summary import table


def _parts(records: pa.Table, folder: Path) -> Records:
    """Write each model's records into a file of its own."""
    files = []
    names = records["model"].cast(pa.string())
    for k, name in enumerate(sorted(set(names.to_pylist()))):
        files.append((folder / f"{k}.parquet",))
        pq.write_table(records.filter(pa.compute.equal(names, name)), files[-1][0])
    assert len(files) > 1
    return Records(tuple(files))


def test_how_models_are_dealt_to_parts_does_not_show(tmp_path: Path) -> None:
    records = table(3000, failed=(3, 7, 1201))
    parts = _parts(records, tmp_path)
    assert summarise(parts) == summarise(records)
    one = Records((tuple(file for (file,) in parts.parts),))
    assert summarise(one) == summarise(records)


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_stretch_has_the_requests_that_were_there(tmp_path: Path, on_disk: bool) -> None:
    records = table(500, failed=(3, 7))
    held = _parts(records, tmp_path) if on_disk else Records((records,))
    arrival = records["arrival_s"].to_numpy()
    ended = np.where(np.isnan(records["finished_s"]), arrival, records["finished_s"])
    since, until = np.quantile(arrival, (0.4, 0.6))
    there = held.during(("id", "arrival_s"), float(since), float(until))
    wanted = np.flatnonzero((arrival <= until) & (ended >= since))
    assert 0 < len(wanted) < len(records)
    np.testing.assert_array_equal(
        np.sort(there["id"].to_numpy()), np.sort(records["id"].to_numpy()[wanted])
    )
