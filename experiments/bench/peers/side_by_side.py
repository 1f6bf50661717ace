"""This simulator and a peer on the same requests, in alternation.

    make peer-simulator
    python -m experiments.bench.simulator peer=vidur
    python -m experiments.bench.simulator peer=vllm-sr-sim

The case is one model with weights in HBM on one GPU. Both have the same requests, the same budget
of tokens and requests a step, and the same step costs (`vidur_costs`, `fleet_sim_costs`). Each has
a process with the same cores, and they take turns. The measure is CPU time from the first event to
the last: neither has threads, and other work on the machine changes it little. Start-up (settings,
cost tables, machine code, the peer's costs) is reported apart.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.errors import DataError, SettingError
from c2c.runs import RunDir
from c2c.serving import prepare
from experiments.bench.peers import fleet_sim_process, vidur_process
from experiments.bench.peers.case import (
    CONTEXT,
    DATE,
    MODEL,
    PLATFORM,
    read_trace,
    serving,
    write_trace,
)
from experiments.bench.peers.fleet_sim_costs import write_costs
from experiments.bench.peers.vidur_costs import GRANULARITY, write_predictions
from experiments.bench.turns import TurnTaker
from experiments.benchmark import MeasurementSettings, benchmark
from experiments.children import usable_cores

__all__ = ["SideBySideSettings", "main", "missing"]

# Scripts that the Python of the peers' environment runs.
PEERS: Final[Mapping[str, str]] = {
    "vidur": vidur_process.__file__,
    "vllm-sr-sim": fleet_sim_process.__file__,
}
PERCENTILES: Final = (50, 99)


@dataclass
class SideBySideSettings(MeasurementSettings):
    """Settings of the comparison, as key=value on the command line.

    Attributes:
      peer: the other simulator: vidur, or vllm-sr-sim, which simulates requests and not steps.
      requests: number of requests.
      rate_rps: rate of their Poisson arrivals.
      chunk: most tokens of a step, decodes included.
      max_batch: most requests of a step.
      turns: counted turns of each simulator; one more comes first and is not counted.
      cores: cores that each process may use; 0 for all of this process's.
      python: Python of the peer's environment.
      seed: seed of arrivals and lengths.
    """

    peer: str = "vidur"
    requests: int = 10_000
    rate_rps: float = 10.0
    chunk: int = 512
    max_batch: int = 128
    turns: int = 3
    cores: int = 1
    python: str = ".venv-peer-simulator/bin/python"
    seed: int = 0


def missing(settings: SideBySideSettings) -> str:
    """Return the reason that the peer cannot run, or an empty text if it can."""
    if Path(settings.python).is_file():
        return ""
    return (
        f"{settings.python} does not exist; `make peer-simulator` makes it if {settings.peer} has "
        "a wheel (Linux on x86_64, Python 3.12)"
    )


def run(settings: SideBySideSettings, out: Console) -> dict[str, Any]:
    """Run both in turns, print a table and return the measurements."""
    reason = missing(settings)
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        given = _prepare(settings, folder)
        cores = usable_cores(settings.cores)
        ours = [sys.executable, "-m", "experiments.bench.peers.ours", json.dumps(given)]
        processes = {"ours": stack.enter_context(TurnTaker(ours, cores, ("ours", "ours")))}
        if not reason:
            theirs = [settings.python, PEERS[settings.peer], json.dumps(given)]
            taker = TurnTaker(theirs, cores, ("python", settings.python))
            processes[settings.peer] = stack.enter_context(taker)
        turns: dict[str, list[dict[str, Any]]] = {name: [] for name in processes}
        load = []
        for turn in range(settings.turns + 1):
            for name, process in processes.items():
                measured = process.measure()
                if turn:  # the first turn compiles or fills caches
                    turns[name].append(measured)
                    out.print(
                        f"  turn {turn} of {settings.turns}: {name} {measured['cpu_s']:.3f} s"
                    )
            load.append(os.getloadavg()[0])
        (block,) = read_trace(Path(given["trace"])).blocks()
    found: dict[str, Any] = {
        "workload": {
            "model": MODEL, "platform": PLATFORM, "requests": settings.requests,
            "rate_rps": settings.rate_rps, "prompt_tokens": float(block.prompt_tokens.mean()),
            "output_tokens": float(block.output_tokens.mean()),
        },
        "step_costs": f"this project's cost model in both, in the tables of {settings.peer}",
        "load": max(load),
        "skipped": {settings.peer: reason} if reason else {},
        "simulators": {name: _row(name, each, block.output_tokens) for name, each in turns.items()},
    }  # fmt: skip
    if not reason:
        found["ratio"] = _ratio(found["simulators"]["ours"], found["simulators"][settings.peer])
    out.print(_table(found, settings))
    if reason:
        out.print(f"{settings.peer} skipped: {reason}")
    return found


def _prepare(settings: SideBySideSettings, folder: Path) -> dict[str, Any]:
    """Write the requests and the costs; return the processes' arguments."""
    trace = folder / "trace.csv"
    write_trace(trace, requests=settings.requests, rate_rps=settings.rate_rps, seed=settings.seed)
    ((table,),) = prepare(setup := serving(settings.chunk, settings.max_batch)).tables
    most = {"chunk": settings.chunk, "max_batch": settings.max_batch, "context": CONTEXT}
    if settings.peer == "vidur":
        write_predictions(folder, table, layers=setup.deployments[0].spec.layers, **most)
    else:
        write_costs(folder, table, **most)
    return {
        "chunk": settings.chunk, "max_batch": settings.max_batch, "trace": str(trace),
        "date": DATE, "context": CONTEXT, "granularity": GRANULARITY, "folder": str(folder),
    }  # fmt: skip


def _row(name: str, turns: Sequence[Mapping[str, Any]], output: np.ndarray) -> dict[str, Any]:
    first = turns[0]
    if any(each["failed"] for each in turns):
        raise DataError(name, f"{first['failed']} requests were not served")
    if any(each["first_s"] != first["first_s"] for each in turns):
        raise DataError(name, "simulated times differ between turns")
    several = output > 1
    tpot = np.array(first["rest_s"])[several] / (output[several] - 1)
    cpu_s = statistics.median(each["cpu_s"] for each in turns)
    return {
        "version": first.get("version", "this one"),
        "requests_per_s": len(output) / cpu_s,
        "cpu_s": [each["cpu_s"] for each in turns],
        "run_s": [each["run_s"] for each in turns],
        "setup_s": statistics.median(each["setup_s"] for each in turns),
        "restarts": first.get("restarts", 0),
        **{f"ttft_p{p}_s": float(np.percentile(first["first_s"], p)) for p in PERCENTILES},
        **{f"tpot_p{p}_s": float(np.percentile(tpot, p)) for p in PERCENTILES},
    }


def _ratio(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, float]:
    """Return ours over theirs: speed over pairs of turns, and simulated times."""
    speeds = [b / a for a, b in zip(ours["cpu_s"], theirs["cpu_s"], strict=True)]
    times = [f"{what}_p{p}_s" for what in ("ttft", "tpot") for p in PERCENTILES]
    return {
        "requests_per_s": statistics.median(speeds),
        "requests_per_s_least": min(speeds),
        "requests_per_s_most": max(speeds),
    } | {name: ours[name] / theirs[name] for name in times}


def _table(found: Mapping[str, Any], settings: SideBySideSettings) -> Table:
    workload = found["workload"]
    table = Table(
        title=f"{settings.requests:,} requests at {settings.rate_rps:g}/s, prompts of "
        f"{workload['prompt_tokens']:.0f} and outputs of {workload['output_tokens']:.0f} tokens on "
        f"average, {MODEL} on one {PLATFORM}, {settings.chunk} tokens a step",
        title_justify="left", box=SIMPLE_HEAD, pad_edge=False,
    )  # fmt: skip
    heads = ["simulator", "requests/s", "CPU s", "start-up s"]
    heads += [f"{what} p{p} ms" for what in ("TTFT", "TPOT") for p in PERCENTILES]
    for head in heads:
        table.add_column(head, justify="left" if head == "simulator" else "right", no_wrap=True)
    times = [f"{what}_p{p}_s" for what in ("ttft", "tpot") for p in PERCENTILES]
    for name, row in found["simulators"].items():
        table.add_row(
            name if name == "ours" else row["version"],
            f"{row['requests_per_s']:,.0f}",
            f"{statistics.median(row['cpu_s']):.3f}",
            f"{row['setup_s']:.2f}",
            *(f"{1e3 * row[time]:.2f}" for time in times),
        )
    if ratio := found.get("ratio"):
        speed = f"{ratio['requests_per_s']:.0f}x"
        table.add_row("ours / theirs", speed, "", "", *(f"{ratio[time]:.4f}" for time in times))
        table.caption = (
            f"median of {settings.turns} turns each, ratio {ratio['requests_per_s_least']:.0f} to "
            f"{ratio['requests_per_s_most']:.0f}; load {found['load']:.1f}; step costs: "
            f"{found['step_costs']}"
        )
    return table


def _check(settings: SideBySideSettings) -> None:
    if settings.peer not in PEERS:
        raise SettingError("peer", settings.peer, " or ".join(PEERS))
    least = {"requests": 10, "turns": 1, "cores": 0, "seed": 0, "max_batch": 1, "chunk": 32}
    for name, smallest in least.items():
        if (value := getattr(settings, name)) < smallest:
            raise SettingError(name, value, f"a whole number, at least {smallest}")
    if settings.rate_rps <= 0:
        raise SettingError("rate_rps", settings.rate_rps, "a number above 0")
    if settings.chunk <= settings.max_batch:
        raise SettingError(
            "chunk", settings.chunk, f"more tokens than max_batch ({settings.max_batch})",
            "A step's tokens include its decodes.",
        )  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Run the comparison that the command line asks for; return the exit status."""

    def work(settings: SideBySideSettings, folder: RunDir, out: Console) -> None:
        folder.write_json("peer_simulator", run(settings, out))

    return benchmark(
        SideBySideSettings, arguments, work, check=_check, packages=("c2c",), name="peer_simulator"
    )  # fmt: skip
