"""Compile decode steps of a transformer at several batch sizes, without the target GPU.

    c2c try medusa_steps out=steps batch_sizes=[1,2,4,8] step.layers=2 step.hidden=512
    c2c try medusa models=[xla:steps]

Takes half a minute a batch size. XLA's compiler for GPUs is that of .venv-aot (`make aot`) or of
jax.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from c2c.errors import DataError, SettingError
from c2c.runs import progress_bar
from c2c.systems.program.xla import StepShape
from experiments import children
from experiments.children import ROOT, run
from experiments.plain_settings import run_settings

__all__ = ["StepsSettings", "compile_steps", "main"]

BATCH_SIZES: Final = (1, 2, 4, 8)


@dataclass
class StepsSettings:
    """Settings, as key=value on the command line.

    Attributes:
      out: folder to create.
      batch_sizes: sequences of each step, ascending.
      step: fields of `StepShape`, all but rows and chunk.
    """

    out: str = "steps"
    batch_sizes: list[int] = field(default_factory=lambda: list(BATCH_SIZES))
    step: dict[str, Any] = field(default_factory=dict)


def shapes_of(batch_sizes: Sequence[int], step: Mapping[str, Any]) -> dict[int, StepShape]:
    """Return each batch size's decode step."""
    sizes = list(batch_sizes)
    if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 1:
        raise SettingError("batch_sizes", sizes, "ascending numbers above 0, without duplicates")
    names = set(StepShape.__dataclass_fields__) - {"rows", "chunk"}
    if other := sorted(step.keys() - names):
        raise SettingError(f"step.{other[0]}", step[other[0]], f"one of {', '.join(sorted(names))}")
    return {rows: StepShape(rows=rows, **step) for rows in sizes}


def compile_steps(
    folder: Path, batch_sizes: Sequence[int], step: Mapping[str, Any], env: Mapping[str, str]
) -> None:
    """Compile each batch size into a folder in `folder`; keep existing ones."""
    shapes = shapes_of(batch_sizes, step)
    with progress_bar("steps", len(shapes)) as advance:
        for done, (rows, shape) in enumerate(shapes.items()):
            if not (folder / str(rows)).is_dir():
                _compile(folder / str(rows), shape, env)
            advance(done + 1)


def _compile(folder: Path, shape: StepShape, env: Mapping[str, str]) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
    fields = {name: getattr(shape, name) for name in StepShape.__dataclass_fields__}
    line = [sys.executable, "-m", "c2c.systems.program.xla.compile", str(partial)]
    done = run([*line, json.dumps(fields)], env=env, apart=False)
    if done.code:
        raise DataError(f"step of batch size {shape.rows}", done.why)
    partial.rename(folder)


def environment(bindings: Path = ROOT / ".venv-aot") -> dict[str, str]:
    """Return this environment with any `bindings` (the GPU compiler) on its path."""
    return children.environment(bindings)


def main(arguments: Sequence[str]) -> int:
    """Compile the steps; return the exit status."""

    def work(settings: StepsSettings) -> None:
        compile_steps(Path(settings.out), settings.batch_sizes, settings.step, environment())
        print(f"c2c try medusa 'models=[xla:{settings.out}]'")

    return run_settings(StepsSettings, arguments, work, goes_on=True)
