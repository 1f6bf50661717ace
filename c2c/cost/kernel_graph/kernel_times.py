"""GPUs of `conf/hardware`, with a user's kernel times."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from c2c.cost.constants import Constants, calibration_for, load_constants
from c2c.cost.kernel_graph.gpus import TimedGpu, Times
from c2c.cost.kernel_graph.kernels import Batch, step_kernels
from c2c.cost.kernel_graph.seconds import step_s
from c2c.errors import DataError, SettingError
from c2c.hardware import Node, Platform, conf_folders, load_platform
from c2c.models import load_spec
from c2c.ranges import AboveZero, check_value

__all__ = ["COLUMNS", "modelled_us", "timed_gpu", "timed_gpus", "timed_node", "times_lines"]

COLUMNS: Final = ("model", "rows", "chunk", "context", "expert_bytes", "kernel", "us")


# `kernel_times/<chip>.csv` in a folder of settings has a row for each kernel of a step: `model`,
# `rows`, `chunk` and `context` of the step (`Batch`), `expert_bytes` of an expert's weight,
# `kernel` and `us`. A kernel takes its measured time at the measured step; elsewhere the cost
# model's, times the factor that is measured for it.
def timed_gpu(platform: Platform | str, share: float = 1.0) -> TimedGpu:
    """Return a whole GPU with its calibration and measured kernel times.

    Args:
      platform: of `conf/hardware`, or its name.

    Raises:
      SettingError: an unknown name or bad share.
      DataError: an unusable file of kernel times.
    """
    chip = load_platform(platform) if isinstance(platform, str) else platform
    constants = load_constants(calibration_for(chip.name))
    result = TimedGpu(name=chip.name, gpu=chip.gpu, constants=constants, share=share)
    if (path := _file(chip.name)) is None:
        return result
    return replace(result, times=_times(path, path.read_text(encoding="utf-8"), result))


def timed_gpus(*names: str) -> tuple[TimedGpu, ...]:
    """Return GPUs of `conf/hardware` by name."""
    return tuple(map(timed_gpu, names))


def timed_node(node: Node, constants: Constants | None = None) -> tuple[TimedGpu, ...]:
    """Return a node's GPUs, or its slices with the constants of their chip.

    Args:
      constants: those of the first GPU's kind, or of the slices' chip; None: by its name.
    """
    chip = (node.chip or node.platforms[0]).name
    calibration = constants or load_constants(calibration_for(chip))
    if node.chip is None:
        every = {name: timed_gpu(name) for name in {*node.gpus} - {chip}}
        first = replace(timed_gpu(node.platforms[0]), constants=calibration)
        return tuple(every.get(name, first) for name in node.gpus)
    return tuple(
        TimedGpu(name=part.name, gpu=platform.gpu, constants=calibration.on(part))
        for part, platform in zip(node.parts, node.platforms, strict=True)
    )


def times_lines(chips: Iterable[str]) -> tuple[str, ...]:
    """Return a line a chip with measured kernel times."""
    return tuple(
        f"kernels of {chip}: measured times of {', '.join(sorted({t.kernel for t in times}))}; "
        "others by the cost model"
        for chip in dict.fromkeys(chips)
        if (times := timed_gpu(chip).times)
    )


def modelled_us(
    model: str, batch: Batch, on: TimedGpu, *, expert_bytes: float = 2.0
) -> dict[str, float]:
    """Return modelled mean microseconds of each kernel of a step."""
    kernels = step_kernels(load_spec(model), batch, expert_bytes=expert_bytes)
    times_us: dict[str, list[float]] = {}
    for kernel, seconds in zip(kernels, step_s(kernels, on), strict=True):
        times_us.setdefault(kernel.kind, []).append(1e6 * float(seconds))
    return {kind: sum(times) / len(times) for kind, times in times_us.items()}


def _file(chip: str) -> Path | None:
    files = (folder / "kernel_times" / f"{chip}.csv" for folder in conf_folders())
    return next((file for file in files if file.is_file()), None)


@lru_cache(maxsize=16)
def _times(path: Path, text: str, on: TimedGpu) -> tuple[Times, ...]:
    steps: dict[tuple[str, Batch, float], dict[str, float]] = {}
    for where, step, kernel, us in _rows(path, text):
        measured = steps.setdefault(step, {})
        if kernel in measured:
            raise DataError(where, f"a second row of {kernel} at this step")
        measured[kernel] = us
    logs: dict[tuple[str, bool], dict[int, list[float]]] = {}
    for (model, batch, expert_bytes), measured in steps.items():
        one = replace(on, share=1.0)
        modelled = modelled_us(model, batch, one, expert_bytes=expert_bytes)
        for kernel, us in measured.items():
            if kernel not in modelled:
                allowed = f"kernel {kernel!r}: expected one of {', '.join(modelled)}"
                raise DataError(str(path), f"{model}: {allowed}")
            ratios = logs.setdefault((kernel, batch.chunk == 1), {})
            ratios.setdefault(batch.tokens, []).append(math.log(us / modelled[kernel]))
    return tuple(
        Times(kernel, is_decode, tuple(sorted(ratios)),
              tuple(math.exp(sum(ratios[n]) / len(ratios[n])) for n in sorted(ratios)))
        for (kernel, is_decode), ratios in logs.items()
    )  # fmt: skip


def _rows(path: Path, text: str) -> Iterator[tuple[str, tuple[str, Batch, float], str, float]]:
    reader = csv.DictReader(text.splitlines())
    if reader.fieldnames is None or set(reader.fieldnames) != set(COLUMNS):
        raise DataError(f"{path}, row 1", f"expected the columns {','.join(COLUMNS)}")
    for number, row in enumerate(reader, 2):
        where = f"{path}, row {number}"
        try:
            rows, chunk, context = (int(row[n]) for n in ("rows", "chunk", "context"))
            batch, us = Batch(rows=rows, chunk=chunk, context=context), float(row["us"])
            expert_bytes = float(row["expert_bytes"])
            check_value(expert_bytes, AboveZero, "expert_bytes")
            load_spec(row["model"])
        except (SettingError, TypeError, ValueError) as error:
            raise DataError(where, str(error)) from error
        if not 0.0 < us < math.inf:
            raise DataError(f"{where}, us", f"expected a number above 0, found {row['us']!r}")
        yield where, (row["model"], batch, expert_bytes), row["kernel"], us
