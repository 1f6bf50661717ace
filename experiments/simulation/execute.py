"""Simulate a checked setup into a run folder: records to disk as they come, then the summary."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf

from c2c.config import RunSetup, prefers_compiled, run_totals, summary_of
from c2c.metrics import RECORD_SCHEMA, SUMMARY_COLUMNS, write_timeline
from c2c.runs import NOT_INPUTS, RunDir, check_room, content_key
from c2c.simulator import (
    RunStats,
    Simulation,
    build_machine,
    phases_table,
    requests_table,
    run_blocks,
)

__all__ = [
    "Outcome",
    "Speed",
    "check_disk",
    "chosen_chunks",
    "execute",
    "folder_of",
    "run_key",
]

# What a run may leave on disk: a request takes about 70 bytes, a phase of the timeline 50.
REQUEST_BYTES, PHASE_BYTES, FIXED_BYTES = 90, 60, 1_000_000
RESULTS = ("requests.parquet", "summary.json", "timeline.json.gz", "speed.json")
# Code a result depends on, beside Hydra's composition of the settings.
CODE = ("c2c", "experiments.simulation", "experiments.figures.run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Wall seconds of a run, by what they went into; the parts of `simulate_s` come first.

    Attributes:
      requests: how many arrived.
      generate_s: making or reading the requests.
      events_s: the event loop, policies included.
      records_s: records into `requests.parquet`.
      simulate_s: these three together.
      summary_s: reading the records back, summary and timeline.
      compiled: machine code or interpreter.
    """

    requests: int
    generate_s: float
    events_s: float
    records_s: float
    simulate_s: float
    summary_s: float
    compiled: bool

    @property
    def requests_per_s(self) -> float:
        """Requests a second, their making and writing included."""
        return self.requests / self.simulate_s if self.simulate_s > 0 else 0.0


class _Watch:
    """Seconds spent in an iterator's items and in a function's calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def over[T](self, items: Iterable[T]) -> Iterator[T]:
        iterator = iter(items)
        while True:
            started = time.perf_counter()
            item = next(iterator, None)
            self.seconds += time.perf_counter() - started
            if item is None:
                return
            yield item

    def around(self, function: Callable[[Any], None]) -> Callable[[Any], None]:
        def timed(value: Any) -> None:
            started = time.perf_counter()
            function(value)
            self.seconds += time.perf_counter() - started

        return timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run that is complete: its folder, its summary, and its speed if it ran just now."""

    folder: Path
    summary: Mapping[str, Any]
    speed: Speed | None

    @property
    def skipped(self) -> bool:
        """Whether the folder was complete already."""
        return self.speed is None


def folder_of(setup: RunSetup) -> Path:
    """Return the run's folder: `folder`, or one in `out` named by the settings.

    The name does not depend on the content of traces or code: a run whose inputs changed replaces
    the earlier one.
    """
    s = setup.settings
    if s["folder"]:
        return Path(s["folder"]).expanduser()
    settings = {k: v for k, v in s.items() if k not in NOT_INPUTS}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    serving = setup.serving
    mig = serving.mig if isinstance(serving.mig, str) else serving.mig.name
    parts = (
        serving.system.name,
        serving.platform.name,
        mig,
        s["catalog"].get("name", f"{len(serving.deployments)}models"),
        s["workload"]["name"],
        f"s{setup.seed}",
        digest,
    )
    return Path(s["out"]).expanduser() / "_".join(re.sub(r"[^\w.-]+", "-", p) for p in parts)


def execute(
    setup: RunSetup,
    *,
    before: Callable[[bool], None] = lambda compiled: None,  # noqa: ARG005
    on_progress: Callable[[float], None] = lambda done: None,  # noqa: ARG005
    after: Callable[[Outcome], None] = lambda outcome: None,  # noqa: ARG005
) -> Outcome:
    """Run a setup into its folder, or return what a complete folder holds.

    Args:
      before: called when a run starts, with whether it is compiled.
      on_progress: takes the number of requests that arrived so far.
      after: takes the outcome as soon as the summary is on disk, before anything is drawn.

    Raises:
      SettingError: the folder cannot be used.
    """
    folder = folder_of(setup)
    settings = dict(setup.settings)
    with RunDir.open(
        folder,
        settings,
        packages=CODE,
        files=setup.files,
        seed=setup.seed,
        resume=settings["resume"],
        **_folder_rules(setup),
    ) as run:
        if run.is_complete:
            summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
            outcome = Outcome(folder=folder, summary=summary, speed=None)
            after(outcome)
            return outcome
        compiled = prefers_compiled(setup)
        before(compiled)
        outcome = _simulate(setup, run, compiled, on_progress)
        after(outcome)
        if settings["figures"]:
            _draw(setup, run)
    return outcome


def check_disk(cfg: DictConfig) -> None:
    """Raise where a generator's requests leave more than the disk has room for.

    Asked before they are counted, which takes its time; other faults are found later.

    Raises:
      SettingError: names the folder, the bytes needed and free.
    """
    workload = OmegaConf.select(cfg, "workload")
    found = [OmegaConf.select(workload, n) for n in ("requests", "replicas", "max_requests")]
    if OmegaConf.select(workload, "kind") == "trace" or any(type(n) is not int for n in found):
        return
    requests, replicas, most = found
    count = min(requests * replicas, most or requests * replicas)
    field = "folder" if cfg.folder else "out"
    check_room(Path(str(cfg[field])).expanduser(), count * REQUEST_BYTES, field)


def run_key(setup: RunSetup) -> str:
    """Return the key of the run's settings, code and data."""
    return content_key(setup.settings, packages=CODE, files=setup.files, ignore=NOT_INPUTS)


def _folder_rules(setup: RunSetup) -> dict[str, Any]:
    s = setup.settings
    count = int(setup.workload.description["requests"])
    return {
        "ignore": NOT_INPUTS,
        "overwrite": s["overwrite"],
        "names": RESULTS,
        "needs_bytes": FIXED_BYTES + count * REQUEST_BYTES + setup.timeline_rows * PHASE_BYTES,
        "field": "folder" if s["folder"] else "out",
    }


def _simulate(
    setup: RunSetup, run: RunDir, compiled: bool, on_progress: Callable[[float], None]
) -> Outcome:
    prepared = setup.prepared
    simulation = Simulation.start(
        prepared,
        build_machine(prepared),
        loop=setup.workload.loop,
        compiled=compiled,
        timeline_rows=setup.timeline_rows,
    )
    generating, recording = _Watch(), _Watch()
    started = time.perf_counter()
    with run.stream_table("requests", RECORD_SCHEMA) as requests:
        stats = run_blocks(
            simulation,
            generating.over(setup.workload.blocks()),
            recording.around(lambda records: requests.append(requests_table(prepared, records))),
            lambda done, _: on_progress(float(done)),
        )
        events_until = time.perf_counter()
    ended = time.perf_counter()
    records_s = recording.seconds + (ended - events_until)  # what the file still held back

    def read(columns: Sequence[str]) -> pa.Table:
        return pq.read_table(run.path / "requests.parquet", columns=list(columns))

    summary = summary_of(setup, read(SUMMARY_COLUMNS), read, _totals(setup, stats))
    run.write_json("summary", summary)
    _write_timeline(setup, run, simulation, stats)
    speed = Speed(
        requests=stats.arrived,
        generate_s=generating.seconds,
        events_s=ended - started - generating.seconds - records_s,
        records_s=records_s,
        simulate_s=ended - started,
        summary_s=time.perf_counter() - ended,
        compiled=compiled,
    )
    run.write_json("speed", speed)
    return Outcome(folder=run.path, summary=summary, speed=speed)


def _totals(setup: RunSetup, stats: RunStats) -> dict[str, Any]:
    return run_totals(setup.prepared, stats) | {
        "workload": dict(setup.workload.description),
        "chunks": chosen_chunks(setup),
        "notes": list(setup.notes),
    }


def chosen_chunks(setup: RunSetup) -> list[dict[str, Any]]:
    """Return the chunk of each (architecture, slice) pair and whether it keeps every limit."""
    prepared = setup.prepared
    return [
        {"model": spec.name, "slice": kind.name, "tokens": choice.tokens, "fits": choice.feasible}
        for spec, row in zip(prepared.architectures, prepared.chunks, strict=True)
        for kind, choice in zip(prepared.slice_kinds, row, strict=True)
    ]


def _write_timeline(setup: RunSetup, run: RunDir, simulation: Simulation, stats: RunStats) -> None:
    prepared = setup.prepared
    phases: pa.Table = phases_table(prepared, simulation.timeline())
    names = {
        i: f"{prepared.slice_kinds[kind].name} #{i}" for i, kind in enumerate(prepared.kind_of)
    }
    with run.open_file("timeline.json.gz") as file:
        write_timeline(
            phases, file, instance_names=names, link_capacity_gbps=stats.link_capacity_gbps
        )


def _draw(setup: RunSetup, run: RunDir) -> None:
    # Matplotlib takes longer to import than most runs take: only here, after the result is out.
    from experiments.figures.run import draw_run
    from experiments.figures.style import look

    serving = setup.serving
    caption = (
        f"Simulated: {serving.system.name} on {serving.superchips} x {serving.platform.name}, "
        f"link variant '{serving.link_variant}' "
        f"({setup.prepared.link_capacity_gbps:g} GB/s, host to device), workload "
        f"{setup.workload.description['name']}, seed {setup.seed}."
    )
    requests = pq.read_table(run.path / "requests.parquet", columns=list(SUMMARY_COLUMNS))
    with look():
        for name, figure in draw_run(requests, caption).items():
            run.write_figure(name, figure)
