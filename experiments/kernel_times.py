"""Kernel times of a step from a profile by Nsight Systems: `kernel_times/<chip>.csv`.

    nsys profile -o decode64 <program that runs decode steps of one size>
    nsys stats -r cuda_gpu_trace -f csv decode64.nsys-rep > decode64.csv
    c2c calibrate kernels trace=decode64.csv to=mydir chip=mychip model=llama-3-8b rows=64
        context=1000 before=[embed] after=[norm_end,head,argmax] layer=[norm1,qkv,
        rope_q+rope_k+kv_write,attention,merge,o,-,add1+norm2,gate_up,activate,down,add2]
    c2c simulate --config-dir mydir system=tessera node=mynode

`layer` lists a layer's kernels in launch order, `before` and `after` those around the layers. `a+b`
is a launch of several kernels; `-` one of none, whose time counts with the launch before. The trace
has whole steps of one size; each kernel gets its median.
"""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from c2c.errors import DataError, SettingError
from c2c.ranges import AboveZero, Count
from experiments.plain_settings import run_settings

__all__ = ["KernelTimesSettings", "main"]

_DURATION, _NAME = "Duration (ns)", "Name"


@dataclass
class KernelTimesSettings:
    """Settings as key=value on the command line.

    Attributes:
      trace: CSV of `nsys stats -r cuda_gpu_trace -f csv`, in nanoseconds.
      to: folder with hardware/<chip>.yaml; its kernel_times/<chip>.csv is extended.
      chip: name of the chip.
      model: name of the model, or a folder with its config.json.
      rows: sequences of the step.
      chunk: new tokens of each; 1: a decode step.
      context: tokens of each sequence.
      expert_bytes: bytes of an expert's weight.
      layer: kernels of a layer, in launch order.
      before: kernels before the first layer.
      after: kernels after the last layer.
      skip: regular expression of other names, such as copies.
    """

    trace: str = ""
    to: str = "."
    chip: str = ""
    model: str = "llama-3-8b"
    rows: Count = 64
    chunk: Count = 1
    context: Count = 1000
    expert_bytes: AboveZero = 2.0
    layer: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    skip: str = r"\[CUDA (memcpy|memset)"


def main(arguments: Sequence[str]) -> int:
    """Read a trace and write the times; return the exit status."""
    return run_settings(KernelTimesSettings, arguments, _run)


def _run(settings: KernelTimesSettings) -> None:
    from c2c.config.plug_ins import search_settings
    from c2c.cost.kernel_graph import Batch, modelled_us, timed_gpu
    from c2c.models import load_spec

    search_settings([settings.to])
    batch = Batch(rows=settings.rows, chunk=settings.chunk, context=settings.context)
    on = replace(timed_gpu(settings.chip), times=())
    modelled = modelled_us(settings.model, batch, on, expert_bytes=settings.expert_bytes)
    for name in ("before", "layer", "after"):
        _check(name, getattr(settings, name), modelled)
    launches = _launches(Path(settings.trace), settings.skip)
    layers = load_spec(settings.model).layers
    order = [*settings.before, *(layers * settings.layer), *settings.after]
    steps, rest = divmod(len(launches), len(order))
    if rest or not steps:
        raise SettingError(
            "layer", settings.layer,
            f"an order of launches whose length divides the trace's {len(launches)}; "
            f"{len(settings.before)} + {layers} x {len(settings.layer)} + {len(settings.after)} = "
            f"{len(order)}", "skip= leaves launches out by name.",
        )  # fmt: skip
    us_of: dict[str, list[float]] = {}
    for name, us in _summed(steps * order, launches):
        kinds = name.split("+")
        whole = sum(modelled[kind] for kind in kinds)
        for kind in kinds:
            us_of.setdefault(kind, []).append(us * modelled[kind] / whole)
    measured = {kind: statistics.median(samples) for kind, samples in us_of.items()}
    path = _write(settings, measured)
    print(f"{path}: {len(measured)} kernels from {steps} steps of {len(order)} launches, in us")
    for kind, us in measured.items():
        print(f"  {kind:16s} measured {us:8.2f}   cost model {modelled[kind]:8.2f}")
    if gaps := [kind for kind in modelled if kind not in measured]:
        print(f"  by the cost model alone: {', '.join(gaps)}")


def _check(field_: str, names: Sequence[str], times: dict[str, float]) -> None:
    kinds = [kind for name in names if name != "-" for kind in name.split("+")]
    for kind in kinds:
        if kind not in times:
            raise SettingError(field_, kind, f"one of {', '.join(times)}, or -")
        if kinds.count(kind) > 1:
            raise SettingError(field_, kind, "each kernel once")
    if names[:1] == ["-"]:
        raise SettingError(field_, "-", "a kernel first, with which a launch of none counts")


def _launches(path: Path, skip: str) -> list[float]:
    if not path.is_file():
        raise SettingError("trace", str(path), "a CSV file of nsys stats -r cuda_gpu_trace -f csv")
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    head = next((k for k, row in enumerate(rows) if _DURATION in row and _NAME in row), None)
    if head is None:
        how = "Export with nsys stats -r cuda_gpu_trace -f csv --timeunit nsec."
        raise DataError(str(path), f"no header with {_DURATION!r} and {_NAME!r}", how)
    duration, name = rows[head].index(_DURATION), rows[head].index(_NAME)
    left_out, result = re.compile(skip) if skip else None, []
    for number, row in enumerate(rows[head + 1 :], head + 2):
        if len(row) != len(rows[head]):
            raise DataError(f"{path}, row {number}", f"{len(row)} cells of {len(rows[head])}")
        if left_out is not None and left_out.search(row[name]):
            continue
        try:
            result.append(float(row[duration]) / 1e3)
        except ValueError as error:
            raise DataError(f"{path}, row {number}, {_DURATION}", str(error)) from error
    return result


def _summed(order: Sequence[str], launches: Sequence[float]) -> list[tuple[str, float]]:
    result: list[Any] = []
    for name, us in zip(order, launches, strict=True):
        if name == "-":
            result[-1] = (result[-1][0], result[-1][1] + us)
        else:
            result.append((name, us))
    return result


def _write(settings: KernelTimesSettings, measured: dict[str, float]) -> Path:
    from c2c.atomic import write_text
    from c2c.cost.kernel_graph import COLUMNS

    path = Path(settings.to) / "kernel_times" / f"{settings.chip}.csv"
    step = [settings.model, settings.rows, settings.chunk, settings.context, settings.expert_bytes]
    begin = ",".join(map(str, step)) + ","
    lines = path.read_text(encoding="utf-8").splitlines()[1:] if path.is_file() else []
    old_lines = [line for line in lines if not line.startswith(begin)]
    new_lines = [f"{begin}{kind},{us:.4g}" for kind, us in measured.items()]
    path.parent.mkdir(exist_ok=True)
    write_text(path, "\n".join([",".join(COLUMNS), *old_lines, *new_lines]) + "\n")
    return path
