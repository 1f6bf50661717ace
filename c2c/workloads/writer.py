"""Store a workload as a trace in the project's own format."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from c2c.atomic import atomic_file
from c2c.errors import SettingError
from c2c.workloads.blocks import Workload

__all__ = ["write_trace"]

_SCHEMA = pa.schema(
    [
        ("arrival_s", pa.float64()),
        ("model", pa.dictionary(pa.int32(), pa.string())),
        ("prompt_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
    ]
)


def write_trace(path: str | Path, workload: Workload, *, overwrite: bool = False) -> int:
    """Write arrival_s, model, prompt_tokens and output_tokens to Parquet, block by block.

    The file appears under its name only when it is complete and on disk.

    Args:
      path: of the file, which must not be there yet.
      workload: what is written.
      overwrite: a file that is there is replaced.

    Returns:
      The number of requests written.

    Raises:
      SettingError: the file is there already, or the requests of a closed loop have no times.
    """
    if workload.loop is not None:
        raise SettingError("workload.kind", "closed_loop", "a workload whose requests have times")
    path = Path(path)
    if path.exists() and not overwrite:
        raise SettingError("path", str(path), "a file that is not there yet", "Or overwrite=True.")
    names = pa.array(workload.models, pa.string())
    written = 0
    with (
        atomic_file(path) as whole,
        pq.ParquetWriter(whole, _SCHEMA, compression="zstd") as file,
    ):
        for block in workload.blocks():
            model = pa.DictionaryArray.from_arrays(pa.array(block.model), names)
            columns = [
                pa.array(block.arrival_s),
                model,
                pa.array(block.prompt_tokens),
                pa.array(block.output_tokens),
            ]
            file.write_batch(pa.record_batch(columns, schema=_SCHEMA))
            written += len(block)
    return written
