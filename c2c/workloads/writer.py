"""Store a workload as a trace in the project's own format."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

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
      SettingError: the file is there already.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise SettingError("path", str(path), "a file that is not there yet", "Or overwrite=True.")
    path.parent.mkdir(parents=True, exist_ok=True)
    names = pa.array(workload.models, pa.string())
    written = 0
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        with pq.ParquetWriter(unfinished, _SCHEMA, compression="zstd") as file:
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
        # mkstemp makes files private; a trace is as readable as any other output.
        umask = os.umask(0)
        os.umask(umask)
        Path(unfinished).chmod(0o666 & ~umask)
        with Path(unfinished).open("rb") as whole:
            os.fsync(whole.fileno())
        Path(unfinished).replace(path)
    finally:
        Path(unfinished).unlink(missing_ok=True)
    return written
