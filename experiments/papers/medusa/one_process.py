"""One process of an offline or online start."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from c2c.errors import DataError, SettingError, unknown_name
from c2c.runs import write_json
from c2c.systems.medusa import (
    KvRecord,
    OnDemand,
    Templates,
    analyse,
    load_artefact,
    make_artefact,
    measured_kv,
    read_capture,
    stored_kv_bytes,
    write_artefact,
    write_capture,
)
from c2c.systems.medusa.artefact import artefact_path
from c2c.systems.medusa.classify import ReplaceAddress
from c2c.systems.program import Arenas, Device, DeviceFault, Emulated, Program
from c2c.systems.program.xla import over_one_memory, read_dump
from experiments.command import command
from experiments.papers.medusa.models import BATCH_SIZES, MODELS, nodes_a_layer, step_program
from experiments.papers.medusa.output_digests import (
    begun,
    median_s,
    outputs_of,
    plain_regions,
    regions_from,
)
from experiments.papers.medusa.processes import Process, emulated_device, key_of
from experiments.papers.medusa.synthetic import Shape, random_program

__all__ = [
    "ADDRESSES",
    "DEVICES",
    "EXECUTABLES",
    "ROLES",
    "main",
    "programs_of",
    "started",
]

# Roles: `capture` and `recapture` write captures, `analyse` the artefact, `restore` the results of
# its graphs.
ROLES = ("capture", "recapture", "analyse", "restore")
DEVICES = ("emulated", "driver")
ADDRESSES = ("patched", "fixed")
EXECUTABLES = ("own", "shared")
SEEDS = {"capture": 1, "recapture": 2, "analyse": 1, "restore": 3}
MEMORY_FRACTION = 0.9


def check_each(models: Sequence[str]) -> None:
    """Refuse an empty list of models, or duplicates."""
    if not models or len(set(models)) < len(models):
        raise SettingError("models", list(models), "at least one, without duplicates")


def programs_of(source: str) -> dict[int, Program]:
    """Return each batch size's program."""
    kind, _, seed = source.partition(":")
    if kind == "xla":
        folders = sorted((p for p in Path(seed).glob("*") if p.name.isdigit()), key=_batch)
        if not folders:
            raise SettingError(
                "models", source, "xla:<folder> with a step for each batch size",
                "Make one with `c2c try medusa_steps`.",
            )  # fmt: skip
        return over_one_memory({_batch(folder): read_dump(folder) for folder in folders})
    if kind in ("random", "computing") and seed.isdigit():
        shape = Shape(
            seed=int(seed), launches=20, has_dag=int(seed) % 2 == 1, is_for_gpu=kind == "computing"
        )
        return {1: random_program(shape)}
    names = [m.row for m in MODELS]
    if source not in names:
        raise unknown_name("models", source, names)
    model = MODELS[names.index(source)]
    spec = model.load()
    counts = nodes_a_layer(model.nodes, spec.layers)
    return {b: step_program(spec, b, n) for b, n in zip(BATCH_SIZES, counts, strict=True)}


def _batch(folder: Path) -> int:
    return int(folder.name)


def work(role: str, device: str, ways: tuple[str, str], source: str, folder: Path) -> None:
    """Do a role's part and write its files."""
    addresses, executables = ways
    if role == "analyse":
        _analyse(_replace_address(device), folder, source)
    elif role == "restore":
        _restore(device, addresses, executables, source, folder)
    else:
        # only the first capture has arenas: the second must not share its addresses
        is_free = addresses == "patched" or role == "recapture"
        begins: dict[str, int] | None = None if is_free else {}
        _capture(started(role, device, source, begins), role, device, folder)


def started(role: str, device: str, source: str, begins: Mapping[str, int] | None) -> Process:
    """Start a process; `begins`: of its address ranges, empty: chosen, None: no ranges."""
    has_guards, seed = role == "recapture", SEEDS[role]
    programs = programs_of(source)
    machine = _device(device) or emulated_device(programs, seed)
    has_whims = device == "emulated" and begins is None  # memory in arenas has no history
    return Process(
        programs, seed, has_whims=has_whims, has_guards=has_guards, device=machine,
        arenas=_arenas(machine, begins),
    )  # fmt: skip


def _arenas(device: Device, begins: Mapping[str, int] | None) -> Arenas | None:
    return None if begins is None else Arenas(device, begins or None)


def _capture(process: Process, role: str, device: str, folder: Path) -> None:
    begin = time.perf_counter()
    capture = process.capture()
    write_capture(folder / f"{role}.capture", capture)
    report: dict[str, Any] = {"capture_s": time.perf_counter() - begin, "warm_s": process.warm_s}
    report["first_capture_s"] = process.first_s
    content_bytes = sum(e.nbytes for e in capture.events if e.allocation in capture.contents)
    report["kv"] = asdict(measured_kv(process.recorder, content_bytes))
    if role == "capture":
        regions = {batch: process.regions(batch) for batch in process.graphs}
        addresses = process.recorder.addresses
        report["outputs"] = outputs_of(
            process.device, lambda b: process.device.instantiate(process.graphs[b]), regions,
            addresses,
        )  # fmt: skip
        write_json(folder / "regions.json", {str(b): plain_regions(r) for b, r in regions.items()})
        if device == "driver":
            report["one_by_one_s"] = {
                str(batch): median_s(partial(process.run, batch)) for batch in process.graphs
            }
    write_json(folder / f"{role}.json", report)


def _analyse(replace_address: ReplaceAddress, folder: Path, source: str) -> None:
    one, two = (read_capture(folder / f"{name}.capture") for name in ("capture", "recapture"))
    begin, used = time.perf_counter(), time.process_time()
    analysed = analyse(one, two, replace_address)
    report = {
        "analysis_s": time.perf_counter() - begin,
        "analysis_cpu_s": time.process_time() - used,
    }
    key = key_of((graph.batch for graph in one.graphs), source)
    kv = json.loads((folder / "capture.json").read_text("utf-8"))["kv"]
    artefact = make_artefact(key, one, analysed, kv)
    write_artefact(artefact_path(folder, key), artefact)
    sources = Counter(
        artefact.kernels[node.kernel].source
        for graph in artefact.graphs
        for node in graph.nodes
        if node.kind == "kernel"
    )
    refused = [str(r) for r in analysed.refusals]
    write_json(folder / "analyse.json", {**report, "refused": refused, "sources": dict(sources)})


def _restore(device: str, addresses: str, executables: str, source: str, folder: Path) -> None:
    entries = json.loads((folder / "regions.json").read_text("utf-8"))
    regions = {int(batch): regions_from(r) for batch, r in entries.items()}
    artefact = load_artefact(folder, key_of(regions, source))
    if artefact is None:
        raise SettingError("folder", str(folder), "a folder with an artefact of role analyse")
    begins = None if addresses == "patched" else artefact.arenas
    process = started("restore", device, source, begins)
    triggered = process.triggered()
    begin, used = time.perf_counter(), time.process_time()
    recorder = process.recorder
    kv_bytes = stored_kv_bytes(
        KvRecord(**artefact.kv), process.device, recorder.held_bytes, MEMORY_FRACTION
    )
    on_demand = OnDemand(artefact, recorder, triggered)
    first_s = 0.0
    for graph in artefact.graphs:
        on_demand.graph(graph.batch)
        first_s = first_s or time.perf_counter() - begin
    report = {"restore_s": time.perf_counter() - begin, "restore_cpu_s": time.process_time() - used}
    restored = on_demand.restored()
    where = dict(zip(artefact.allocations, restored.addresses, strict=True))
    there = {batch: region for batch, region in regions.items() if batch in restored.graphs}
    templates = Templates(process.device, on_demand, artefact.graphs)

    def executable(batch: int) -> int:
        if executables == "own":
            return process.device.instantiate(restored.graphs[batch])
        return templates.executable(batch) or 0

    outputs = outputs_of(process.device, executable, there, where)
    # after the outputs: a launch changes the buffers' contents
    begun_s = begun(process.device, restored.graphs) if device == "driver" else {}
    report |= {"first_graph_s": first_s, "nodes": restored.nodes, "kv_bytes": kv_bytes or 0}
    report["topologies"] = templates.topologies
    is_in_place = {"is_in_place": restored.is_in_place}
    write_json(folder / "restore.json", {**report, **is_in_place, "outputs": outputs, **begun_s})


def _replace_address(device: str) -> ReplaceAddress:
    return (_device(device) or Emulated(0)).replace_address


def _device(name: str) -> Device | None:
    if name == "emulated":
        return None
    from c2c.systems.program.driver import Driver

    return Driver()


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit status."""

    def run() -> int:
        if len(arguments) != 6:
            raise SettingError(
                "arguments", arguments, "ROLE DEVICE ADDRESSES EXECUTABLES WHAT FOLDER"
            )
        role, device, addresses, executables, subject, folder = arguments
        checks = (
            ("role", role, ROLES), ("device", device, DEVICES),
            ("addresses", addresses, ADDRESSES), ("executables", executables, EXECUTABLES),
        )  # fmt: skip
        for name, value, names in checks:
            if value not in names:
                raise unknown_name(name, value, names)
        try:
            work(role, device, (addresses, executables), subject, Path(folder))
        except DeviceFault as problem:
            raise DataError(f"device={device}", str(problem)) from problem
        return 0

    return command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
