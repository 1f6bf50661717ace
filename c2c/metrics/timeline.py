"""Timeline of phases as Chrome trace events for Perfetto."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from c2c.errors import DataError
from c2c.metrics.columns import values_of
from c2c.metrics.schema import PHASE_SCHEMA

__all__ = ["write_timeline"]

LINK_TRACK = "link GB/s"


def write_timeline(
    phases: pa.Table,
    stream: IO[bytes],
    *,
    instance_names: Mapping[int, str] | None = None,
    link_capacity_gbps: float | None = None,
) -> int:
    """Write phases as gzipped Chrome JSON trace events; return the count.

    Chips are processes, instances threads, phases slices; a counter per chip has its link's rate
    and percentage. Equal tables give equal bytes.

    Args:
      phases: table of `PHASE_SCHEMA`.
      stream: binary; it is not closed.
      instance_names: such as "1g.12gb #3", by number.
      link_capacity_gbps: of each chip, 1e9 bytes a second.

    Raises:
      DataError: a column is missing.
    """
    if missing := [c for c in PHASE_SCHEMA.names if c not in phases.column_names]:
        raise DataError("phases", f"missing columns: {', '.join(missing)}")
    columns = {n: values_of(phases, n) for n in phases.column_names}
    names = dict(instance_names or {})
    count = 0
    # a fixed mtime and no file name: the header would otherwise differ between equal runs
    with gzip.GzipFile(filename="", fileobj=stream, mode="wb", mtime=0, compresslevel=5) as out:
        out.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        for event in _events(columns, names, link_capacity_gbps):
            out.write((",\n" if count else "").encode() + event.encode())
            count += 1
        out.write(b"\n]}\n")
    return count


def _events(
    c: Mapping[str, npt.NDArray[Any]], names: Mapping[int, str], capacity_gbps: float | None
) -> Iterator[str]:
    for chip in np.unique(c["chip"]):
        yield _metadata("process_name", int(chip), None, f"chip {chip}")
        for instance in np.unique(c["instance"][c["chip"] == chip]):
            title = names.get(int(instance), f"instance {instance}")
            yield _metadata("thread_name", int(chip), int(instance), title)
    order = np.lexsort((c["instance"], c["start_s"]))
    # plain Python values: formatting NumPy scalars takes several times as long
    ordered = (c[name][order].tolist() for name in PHASE_SCHEMA.names)
    for chip, instance, model, kind, start, end, tokens, seqs, steps, alpha, link in zip(
        *ordered, strict=True
    ):
        yield (
            f'{{"ph":"X","pid":{chip},"tid":{instance},"name":{json.dumps(f"{model} {kind}")},'
            f'"cat":"{kind}","ts":{start * 1e6:.3f},"dur":{(end - start) * 1e6:.3f},'
            f'"args":{{"tokens":{tokens},"seqs":{seqs},"steps":{steps},'
            f'"alpha":{_number(alpha)},"link_gbps":{_number(link)}}}}}'
        )
    for chip in np.unique(c["chip"]):
        rows = c["chip"] == chip
        yield from _link_counter(
            int(chip), c["start_s"][rows], c["end_s"][rows], c["link_gbps"][rows], capacity_gbps
        )


def _link_counter(
    chip: int,
    start_s: npt.NDArray[np.float64],
    end_s: npt.NDArray[np.float64],
    link_gbps: npt.NDArray[np.float64],
    capacity_gbps: float | None,
) -> Iterator[str]:
    rate = np.nan_to_num(link_gbps)
    times, where = np.unique(np.concatenate([start_s, end_s]), return_inverse=True)
    change = np.bincount(where, weights=np.concatenate([rate, -rate]), minlength=len(times))
    total = np.cumsum(change)
    # sums of the same numbers in another order leave tiny remainders at idle times
    total[np.abs(total) < 1e-6] = 0.0
    for moment, value in zip(times.tolist(), total.tolist(), strict=True):
        yield _counter(chip, LINK_TRACK, moment, value)
        if capacity_gbps is not None:
            yield _counter(chip, "link share %", moment, 100.0 * value / capacity_gbps)


def _counter(chip: int, name: str, at_s: float, value: float) -> str:
    return (
        f'{{"ph":"C","pid":{chip},"name":"{name}","ts":{at_s * 1e6:.3f},'
        f'"args":{{"value":{_number(value)}}}}}'
    )


def _metadata(kind: str, pid: int, tid: int | None, name: str) -> str:
    event: dict[str, Any] = {"ph": "M", "pid": pid, "name": kind, "args": {"name": name}}
    if tid is not None:
        event["tid"] = tid
    return json.dumps(event, separators=(",", ":"))


def _number(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else "null"
