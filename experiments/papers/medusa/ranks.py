"""Graphs of all tensor-parallel ranks, restored from captures of the first and the last rank.

    c2c try medusa_ranks                             # Qwen1.5 0.5B, 4 ranks
    c2c try medusa_ranks models=[llama2_13b] world=8

The first rank is captured twice and the last one once; every rank restores the same artefact.
Emulated. Results are compared with those of each rank's own capture. Writes JSON with
provenance to a folder in runs/bench.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from c2c.errors import DataError, SettingError, unknown_name
from c2c.systems.medusa import (
    Analysed,
    Artefact,
    Capture,
    analyse,
    artefact_path,
    difference,
    make_artefact,
    read_artefact,
    restore,
    sides,
    write_artefact,
)
from c2c.systems.program import Program
from experiments.benchmark import MeasurementSettings, benchmark, measure_each
from experiments.papers.medusa.models import BATCH_SIZES, MODELS, nodes_a_layer, step_program
from experiments.papers.medusa.one_process import check_each
from experiments.papers.medusa.processes import Process, key_of
from experiments.papers.medusa.rank_programs import Rank, ranked, shard
from experiments.papers.medusa.synthetic import Shape, random_program

__all__ = [
    "RanksSettings",
    "captured",
    "main",
    "measure",
    "plain_programs",
    "restored_rank",
    "start",
]


@dataclass
class RanksSettings(MeasurementSettings):
    """Settings, as key=value on the command line.

    Attributes:
      models: models of Table 1, or random:<seed>.
      world: number of ranks, at least 2.
      validated: batch sizes whose graphs are run.
    """

    models: list[str] = field(default_factory=lambda: ["qwen15_0p5b"])
    world: int = 4
    validated: list[int] = field(default_factory=lambda: [1, 256])


def plain_programs(name: str, world: int) -> dict[int, Program]:
    """Return a rank's programs by batch size, without all-reduces."""
    kind, _, seed = name.partition(":")
    if kind == "random" and seed.isdigit():
        return {1: random_program(Shape(seed=int(seed), launches=20))}
    names = [m.row for m in MODELS]
    if name not in names:
        raise unknown_name("models", name, names)
    model = MODELS[names.index(name)]
    spec = shard(model.load(), world)
    counts = nodes_a_layer(model.nodes, spec.layers)
    return {b: step_program(spec, b, n) for b, n in zip(BATCH_SIZES, counts, strict=True)}


def start(
    programs: Mapping[int, Program], rank: Rank, seed: int, *, has_guards: bool = False
) -> Process:
    """Return a started process of a rank."""
    mine = {batch: ranked(program, rank) for batch, program in programs.items()}
    return Process(mine, seed, has_guards=has_guards, told_values=rank.told)


def captured(programs: Mapping[int, Program], world: int) -> tuple[Capture, Analysed]:
    """Return the first rank's capture, and the analysis."""
    original = start(programs, Rank.of(0, world, 1), 1)
    first = original.capture()
    second = start(programs, Rank.of(0, world, 2), 2, has_guards=True).capture()
    last = start(programs, Rank.of(world - 1, world, 3), 3).capture()
    return first, analyse(first, second, original.device.replace_address, other_rank=last)


def restored_rank(
    artefact: Artefact,
    programs: Mapping[int, Program],
    number: int,
    world: int,
    validated: Sequence[int],
) -> dict[str, Any]:
    """Restore a rank's graphs; compare with its own capture."""
    rank = Rank.of(number, world, 100)  # the same handle in both: results depend on it
    original = start(programs, rank, 100 + number)
    begin = time.perf_counter()
    truth = original.capture()
    captured_s = time.perf_counter() - begin
    process = start(programs, rank, 200 + number)
    triggered = process.triggered()
    begin = time.perf_counter()
    restoration = restore(artefact, process.recorder, triggered, told_values=process.told)
    restored_s = time.perf_counter() - begin
    for batch in validated:
        _, two = sides(
            truth, original.functions, original.device, artefact, restoration, process.device, batch
        )
        # a rank's own captures number allocations in the order of its threads
        where = tuple(original.recorder.addresses[name] for name in artefact.allocations)
        raw = next(g for g in truth.graphs if g.batch == batch)
        one = replace(
            two, device=original.device, graph=raw, addresses=where, functions=original.functions
        )
        pair = one, original.device.instantiate(original.graphs[batch])
        other = two, process.device.instantiate(restoration.graphs[batch])
        if first := difference(pair, other, original.regions(batch)):
            raise DataError(f"rank {number}", f"the graph of batch size {batch} differs: {first}")
    return {
        "rank": number, "graphs": len(restoration.graphs), "nodes": restoration.nodes,
        "capture_s": captured_s, "restore_s": restored_s,
    }  # fmt: skip


def measure(name: str, world: int, validated: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for each rank."""
    programs = plain_programs(name, world)
    first, analysed = captured(programs, world)
    if analysed.refusals:
        raise DataError(name, str(analysed.refusals[0]))
    key = key_of(programs, name)
    with TemporaryDirectory() as folder:
        path = artefact_path(Path(folder), key)
        write_artefact(path, make_artefact(key, first, analysed))
        artefact, stored = read_artefact(path, key), path.stat().st_size
    nodes = [node for graph in artefact.graphs for node in graph.nodes]
    counts = {
        "patches": sum(len(node.patches) for node in nodes),
        "told": sum(len(node.told) for node in nodes),
        "stored_bytes": stored,
    }
    batches = [batch for batch in validated if batch in programs]
    return [
        {"model": name, "world": world, **restored_rank(artefact, programs, number, world, batches),
         **counts}
        for number in range(world)
    ]  # fmt: skip


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(
        title="ranks restored from one artefact, seconds of this machine", box=SIMPLE_HEAD
    )
    for head in ("model", "rank", "graphs", "nodes", "patches", "told", "capture", "restore", "MB"):
        table.add_column(head, justify="left" if head == "model" else "right")
    for r in rows:
        table.add_row(
            r["model"], f"{r['rank']}/{r['world']}", f"{r['graphs']}", f"{r['nodes']}",
            f"{r['patches']}", f"{r['told']}", f"{r['capture_s']:.2f}", f"{r['restore_s']:.2f}",
            f"{r['stored_bytes'] / 1e6:.2f}",
        )  # fmt: skip
    table.caption = (
        "told: cells with an argument of the rank: number, shard, communicator. Outputs equal "
        "those of each rank's own capture, byte by byte."
    )
    return table


def main(arguments: Sequence[str]) -> int:
    """Run the check; return the exit status."""

    def check(settings: RanksSettings) -> None:
        if settings.world < 2:
            raise SettingError("world", settings.world, "at least 2 ranks")
        check_each(settings.models)
        if not settings.validated:
            raise SettingError("validated", [], "at least one batch size")
        for batch in settings.validated:
            if batch not in BATCH_SIZES:
                raise SettingError("validated", batch, f"one of {', '.join(map(str, BATCH_SIZES))}")
        for model in settings.models:
            plain_programs(model, settings.world)

    work = measure_each(
        "models",
        lambda s: s.models,
        lambda s, name: measure(name, s.world, s.validated),
        lambda _, rows: _table(rows),
        "ranks",
    )
    return benchmark(
        RanksSettings, arguments, work, check=check, packages=("c2c", "experiments.papers.medusa"),
        name="ranks",
    )  # fmt: skip
