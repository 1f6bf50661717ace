"""Several streams over one link, for the section `mig`.

- groups: SMs of one launch in groups, each of which reads its own part of an array. This emulates
  MIG slices that share the GPU at the same time.
- processes: one process on each of several slices.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import jax
import numpy as np

from experiments.children import Lines, environment
from experiments.gpu import Context, Row, time_launches
from experiments.gpu.kernels import bounds, operands
from experiments.gpu.kernels.facts import since_first
from experiments.gpu.kernels.probes import launcher, scalars

PROCESSES_LIMIT_S = 150.0


def groups(count: int, sms_each: int, context: Context) -> list[Row]:
    """Read with groups of SMs at once; a group's time spans its first start to its last end."""
    streaming = bounds.streaming(context)
    run = jax.device_put(scalars(streaming, sms=count * sms_each, groups=count))
    data = bounds.matrix(streaming, context)
    read = launcher(streaming, interpret=operands.interpret_settings(context))
    each = streaming.boxes // count * streaming.box_bytes
    seen: list[list[float]] = [[] for _ in range(count)]

    def once(_: int) -> Any:
        times = read(data, run)[1]
        if context.backend == "sm90":
            begun, ended = since_first(np.asarray(times)[: count * sms_each])
            for group in range(count):
                part = slice(group * sms_each, (group + 1) * sms_each)
                seen[group].append((ended[part].max() - begun[part].min()) / 1e9)
        return times

    times = time_launches(once, target_s=context.target_s, repetitions=context.repetitions)
    total = count * each / times.median_s / 1e9
    rows: list[Row] = []
    for group in range(count):
        row: Row = {"stream": group, "bytes": each, "total_gbps": total, **times.columns()}
        if seen[group]:
            row["gbps"] = each / float(np.median(seen[group])) / 1e9
        rows.append(row)
    return rows


def processes(
    count: int,
    sms: int,
    context: Context,
    environments: Sequence[Mapping[str, str]] | None = None,
) -> list[Row]:
    """Read in `count` processes at once; rates count the time in which all of them read.

    Args:
      count: number of processes.
      sms: SMs that each process uses, at most those it has.
      context: settings of the measurement.
      environments: environment of each process, which may set its slice; None for this process's.
    """
    lasting_s = {"full": 5.0, "quick": 2.0, "tiny": 0.3}[context.scale]
    command = [
        *(sys.executable, "-m", "experiments.gpu.kernels.streamer"),
        *(json.dumps(asdict(context)), str(sms)),
    ]
    with ExitStack() as stack:
        # in this process's group, so that the run ends them with it
        children = [
            stack.enter_context(Lines(command, env=env, apart=False))
            for env in environments or [environment()] * count
        ]
        for child in children:
            wait_for_ready(child)
        start = time.monotonic() + 0.2
        for child in children:
            child.tell(json.dumps([start, start + lasting_s]))
        answers = [child.line(start + lasting_s + 60) for child in children]
    if not all(answers):
        raise RuntimeError("a streaming process gave no answer")
    found = [json.loads(answer or b"") for answer in answers]
    rates = shares([f["done"] for f in found], found[0]["bytes"])
    total = sum(rates)
    return [
        {"stream": i, "gbps": rate, "share": rate / total if total else None, "total_gbps": total}
        for i, rate in enumerate(rates)
    ]


def wait_for_ready(child: Lines) -> None:
    """Wait until the process prints "ready".

    Raises:
      RuntimeError: the process ended before.
    """
    while line := child.line():
        if line.strip() == b"ready":
            return
    raise RuntimeError(f"a streaming process ended before it was ready ({child.why})")


def shares(done: Sequence[Sequence[float]], nbytes: int) -> list[float]:
    """Return the GB/s of each stream in the window in which all of them read.

    Args:
      done: for each stream, its start and then the end of every launch, in seconds.
      nbytes: bytes of one launch; a launch partly in the window counts in part.

    Raises:
      RuntimeError: there is no such window.
    """
    begin, end = max(d[0] for d in done), min(d[-1] for d in done)
    if end <= begin:
        raise RuntimeError("the streams never read at the same time")
    rates = []
    for times in done:
        inside = 0.0
        for before, after in pairwise(times):
            common = min(after, end) - max(before, begin)
            inside += max(0.0, common) / max(after - before, 1e-12)
        rates.append(inside * nbytes / (end - begin) / 1e9)
    return rates
