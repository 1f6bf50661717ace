"""CPU-seconds of a whole command by number of requests. Takes minutes.

    python -m experiments.bench.first_answer requests=[100,10000]
    python -m experiments.bench.first_answer beside='other --requests={requests}'

Each command is a process of its own; `experiments.simulate` and the other command take turns. The
first run of each is not counted: it fills the page cache and compiles. Writes JSON with provenance
to a folder in runs/bench.
"""

from __future__ import annotations

import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from c2c.errors import SettingError
from experiments.benchmark import MeasurementSettings, benchmark, measure_each

__all__ = ["FirstAnswerSettings", "main"]

COUNT = "{requests}"


@dataclass
class FirstAnswerSettings(MeasurementSettings):
    """Settings of the benchmark, as key=value on the command line.

    Attributes:
      requests: numbers of requests; one comparison each.
      overrides: further settings of `experiments.simulate`.
      beside: another command, with {requests} in place of their number; "": none.
      repeats: counted runs of each command.
    """

    requests: list[int] = field(default_factory=lambda: [100, 10_000, 100_000])
    overrides: list[str] = field(default_factory=list)
    beside: str = ""
    repeats: int = 5


def _commands(settings: FirstAnswerSettings, count: int) -> dict[str, list[str]]:
    ours = [sys.executable, "-m", "experiments.simulate", f"workload.requests={count}"]
    found = {"ours": [*ours, "resume=false", *settings.overrides]}
    if settings.beside:
        found["beside"] = [part.replace(COUNT, str(count)) for part in shlex.split(settings.beside)]
    return found


def _seconds(command: list[str]) -> tuple[float, float]:
    """Run a command; return the CPU-seconds of it and its children, and its wall seconds."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        given = [*command, f"folder={folder}/run"] if "experiments.simulate" in command else command
        try:
            done = subprocess.run(given, capture_output=True, text=True, check=False)  # noqa: S603
        except OSError as error:
            raise SettingError("beside", shlex.join(command), f"a command ({error})") from error
    wall_s, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise SettingError("beside", shlex.join(command), f"a command with exit status 0 ({said})")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, wall_s


def _measured(settings: FirstAnswerSettings, count: int) -> list[dict[str, Any]]:
    commands = _commands(settings, count)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for turn in range(1 + settings.repeats):
        for name, command in commands.items():
            found = _seconds(command)
            if turn:
                taken[name].append(found)
    return [
        {
            "requests": count,
            "command": name,
            "cpu_s": statistics.median(cpu for cpu, _ in each),
            "least_cpu_s": min(cpu for cpu, _ in each),
            "wall_s": statistics.median(wall for _, wall in each),
        }
        for name, each in taken.items()
    ]


def _table(settings: FirstAnswerSettings, rows: Sequence[dict[str, Any]]) -> Table:
    title = f"seconds of a whole command, median of {settings.repeats} runs"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for head in ("requests", "command", "CPU", "least", "wall"):
        table.add_column(head, justify="left" if head == "command" else "right")
    for row in rows:
        seconds = (f"{row[name]:.2f}" for name in ("cpu_s", "least_cpu_s", "wall_s"))
        table.add_row(f"{row['requests']:,}", row["command"], *seconds)
    return table


def _check(settings: FirstAnswerSettings) -> None:
    if not settings.requests or min(settings.requests) < 1:
        raise SettingError("requests", settings.requests, "whole numbers above 0")
    if settings.repeats < 1:
        raise SettingError("repeats", settings.repeats, "a whole number above 0")
    if settings.beside and COUNT not in settings.beside:
        raise SettingError("beside", settings.beside, f"a command with {COUNT} in it")


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark that the command line asks for; return the exit status."""
    work = measure_each("measuring", lambda s: s.requests, _measured, _table, "first_answer")
    return benchmark(
        FirstAnswerSettings, arguments, work,
        check=_check, packages=("c2c", "experiments"), name="first_answer",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
