"""Writer of workloads as traces."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from c2c.atomic import atomic_file
from c2c.errors import SettingError
from c2c.workloads.blocks import MEASURED, WISHES, RequestBlock, Workload

__all__ = ["write_trace"]

_FIELDS = [
    pa.field("arrival_s", pa.float64()),
    pa.field("model", pa.dictionary(pa.int32(), pa.string())),
    pa.field("prompt_tokens", pa.int32()),
    pa.field("output_tokens", pa.int32()),
]
_SESSION = [pa.field("session_id", pa.int64()), pa.field("turn", pa.int32())]
_GRAPH = [
    pa.field("waits_for", pa.list_(pa.int32())),
    pa.field("think_s", pa.float64()),
    pa.field("calls_tool", pa.bool_()),
]
_MEASURED = [pa.field(name, pa.float64()) for name in MEASURED]
_WISHES = [pa.field(name, pa.float64() if name.endswith("_s") else pa.int64()) for name in WISHES]
_HASHES = pa.field("hash_ids", pa.list_(pa.uint64()))


def write_trace(path: str | Path, workload: Workload, *, overwrite: bool = False) -> int:
    """Write requests to Parquet atomically, block by block; return the count.

    Known columns beyond lengths are as in `c2c.workloads.RequestBlock`; `block_tokens` is in the
    metadata.

    Raises:
      SettingError: the file exists without `overwrite`, or a closed loop has no times.
    """
    first = next(workload.blocks(), None)
    if workload.loop is not None and (first is None or first.session is None):
        raise SettingError("workload.kind", "closed_loop", "a workload whose requests have times")
    path = Path(path)
    if path.exists() and not overwrite:
        raise SettingError("path", str(path), "a new file", "Or set overwrite=True.")
    names = pa.array(workload.models, pa.string())
    written = 0
    schema = _schema(first)
    with (
        atomic_file(path) as whole,
        pq.ParquetWriter(whole, schema, compression="zstd") as file,
    ):
        for block in workload.blocks():
            model = pa.DictionaryArray.from_arrays(pa.array(block.model), names)
            columns = [
                pa.array(block.arrival_s),
                model,
                pa.array(block.prompt_tokens),
                pa.array(block.output_tokens),
            ]
            if block.session is not None:
                none = block.session < 0
                columns += [pa.array(block.session, mask=none), pa.array(block.turn, mask=none)]
            columns += _graph(block)
            if block.measured_ttft_s is not None:
                columns += [pa.array(getattr(block, name), from_pandas=True) for name in MEASURED]
            for name, unset in WISHES.items():
                if (values := getattr(block, name)) is not None:
                    columns.append(pa.array(values, mask=values == unset))
            if block.block_keys is not None:
                columns.append(_lists(block))
            file.write_batch(pa.record_batch(columns, schema=schema))
            written += len(block)
    return written


def _schema(block: RequestBlock | None) -> pa.Schema:
    fields, metadata = list(_FIELDS), {}
    if block is not None and block.session is not None:
        fields += _SESSION
    if block is not None:
        there = {
            "waits_for": block.parent_first,
            "think_s": block.think_s,
            "calls_tool": block.calls_tool,
        }
        fields += [one for one in _GRAPH if there[one.name] is not None]
    if block is not None and block.measured_ttft_s is not None:
        fields += _MEASURED
    fields += [f for f in _WISHES if block is not None and getattr(block, f.name) is not None]
    if block is not None and block.block_keys is not None:
        fields.append(_HASHES)
        metadata["block_tokens"] = str(block.block_tokens)
        if block.keys_answers:
            metadata["keys_answers"] = "1"
    return pa.schema(fields, metadata)


def _graph(block: RequestBlock) -> list[pa.Array]:
    columns = []
    if (parents := block.parents()) is not None:
        offsets = pa.array(parents.first, pa.int32())
        columns.append(pa.ListArray.from_arrays(offsets, pa.array(parents.values)))
    if block.think_s is not None:
        columns.append(pa.array(block.think_s, from_pandas=True))
    if block.calls_tool is not None:
        columns.append(pa.array(block.calls_tool))
    return columns


def _lists(block: RequestBlock) -> pa.Array:
    offsets = pa.array(block.block_first, pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(block.block_keys))
