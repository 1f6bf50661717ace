"""Simulation of a checked setup into a run folder."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from c2c.config import RunSetup, Settings, data_folders, prefers_compiled, run_totals, summary_of
from c2c.errors import SettingError
from c2c.metrics import SUMMARY_COLUMNS, Records, write_timeline
from c2c.runs import NOT_INPUTS, RunDir, check_room, content_key, file_key, source_key
from c2c.simulator import RunStats, phases_table
from c2c.simulator.shards import Shard, split
from experiments.children import usable_cores, worker_pool
from experiments.ray_cluster import cluster_cores, cluster_is_named
from experiments.simulation.freed_memory import keep_freed_memory
from experiments.simulation.in_shards import serve_in_shards
from experiments.simulation.serving import Served, serve
from experiments.simulation.trace_latencies import beside_simulated, has_measured

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = [
    "Outcome",
    "Speed",
    "check_disk",
    "chosen_chunks",
    "code_keys",
    "complete_folder",
    "execute",
    "finished",
    "folder_of",
    "run_key",
]

# Bytes of a run on disk, at most: a request takes about 70, a phase of the timeline 50.
REQUEST_BYTES, PHASE_BYTES, FIXED_BYTES = 90, 60, 1_000_000
REQUESTS = "requests.parquet"  # a folder of such files for a long or sharded run
PART_ROWS = 4_000_000  # rows of a file, about, which are summarised at a time
RESULTS = (REQUESTS, "summary.json", "timeline.json.gz", "speed.json")
# Code that a result depends on, beside Hydra's composition of the settings.
CODE = ("c2c", "experiments.simulation", "experiments.figures.run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Wall seconds of a run's parts, of the slowest process.

    Attributes:
      generate_s: making or reading the requests.
      events_s: the event loop, policies included.
      records_s: writing `requests.parquet`.
      simulate_s: these, and starts of processes.
      summary_s: reading back, summary and timeline.
      compiled: whether machine code ran.
    """

    requests: int
    shards: int
    generate_s: float
    events_s: float
    records_s: float
    simulate_s: float
    summary_s: float
    compiled: bool

    @property
    def requests_per_s(self) -> float:
        """Requests a second, including generation and records."""
        return self.requests / self.simulate_s if self.simulate_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Complete run: folder, summary, and speed (None if old)."""

    folder: Path
    summary: Mapping[str, Any]
    speed: Speed | None

    @property
    def skipped(self) -> bool:
        """True if the folder was complete already."""
        return self.speed is None


def folder_of(setup: RunSetup) -> Path:
    """Return the run's folder: `folder`, or one in `out` by settings."""
    s = setup.settings
    if s["folder"]:
        return Path(s["folder"]).expanduser()
    serving = setup.serving
    chips = [f"{part.platform.name}_{part.layout}" for part in serving.parts]
    parts = (
        serving.system.name,
        s["node"]["name"] if s["node"] else s["fleet"]["name"] or "+".join(chips),
        s["catalog"].get("name", f"{len(serving.deployments)}models"),
        s["workload"]["name"],
        f"s{setup.seed}",
        _digest(s),
    )
    return Path(s["out"]).expanduser() / "_".join(re.sub(r"[^\w.-]+", "-", p) for p in parts)


def _digest(settings: Mapping[str, Any]) -> str:
    inputs = {k: v for k, v in settings.items() if k not in NOT_INPUTS}
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:8]


@cache
def code_keys() -> Mapping[str, str]:
    """Return the `source_key` of each package of `CODE`."""
    return {name: source_key(name) for name in CODE}


def finished(
    settings: Mapping[str, Any], code: Mapping[str, str], keys: dict[Path, str] | None = None
) -> Outcome | None:
    """Return a complete run's outcome, or None, without building it."""
    keys = {} if keys is None else keys
    out = Path(settings["out"]).expanduser()
    if settings["folder"] or not settings["resume"]:
        return None
    for folder in sorted(out.glob(f"*_{_digest(settings)}")):
        try:
            record = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
            files = [Path(file) for file in record["files"]]
            keys |= {file: file_key(file) for file in files if file not in keys}
            mine = {file: keys[file] for file in files}
            key = content_key(settings, packages=code, files=mine, ignore=NOT_INPUTS)
        except (OSError, ValueError, KeyError, SettingError):
            continue  # a damaged folder, or a file that is gone: building the run tells more
        folders = {path.absolute() for path in data_folders(settings)}
        if folders <= set(files) and RunDir.holds(folder, key):
            summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
            return Outcome(folder=folder, summary=summary, speed=None)
    return None


def complete_folder(settings: Settings) -> Path | None:
    """Return the folder of these settings' complete run, or None."""
    out = Path(settings["out"]).expanduser()
    folders = [Path(settings["folder"]).expanduser()] if settings["folder"] else sorted(
        out.glob(f"*_{_digest(settings)}")
    )  # fmt: skip
    return next((folder for folder in folders if (folder / "DONE").is_file()), None)


def execute(
    setup: RunSetup,
    *,
    before: Callable[[bool], None] = lambda compiled: None,  # noqa: ARG005
    on_progress: Callable[[float], None] = lambda done: None,  # noqa: ARG005
    after: Callable[[Outcome], None] = lambda outcome: None,  # noqa: ARG005
    keys: dict[Path, str] | None = None,
) -> Outcome:
    """Run a setup into its folder, or return a complete one."""
    folder = folder_of(setup)
    settings = dict(setup.settings)
    if keys is not None:
        keys |= {file: file_key(file) for file in setup.files if file not in keys}
    with RunDir.open(
        folder,
        settings,
        packages=code_keys(),
        files=setup.files if keys is None else {file: keys[file] for file in setup.files},
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


def check_disk(cfg: DictConfig | Mapping[str, Any]) -> None:
    """Raise if the disk lacks room for a generator's records."""
    workload = cfg["workload"]
    counts = [workload.get(n) for n in ("requests", "replicas", "max_requests")]
    if workload.get("kind") == "trace" or any(type(n) is not int for n in counts):
        return
    requests, replicas, most = counts
    count = min(requests * replicas, most or requests * replicas)
    field = "folder" if cfg["folder"] else "out"
    check_room(Path(str(cfg[field])).expanduser(), count * REQUEST_BYTES, field)


def run_key(setup: RunSetup) -> str:
    """Return the key of the run's settings, code and data."""
    return content_key(setup.settings, packages=code_keys(), files=setup.files, ignore=NOT_INPUTS)


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
    started = time.perf_counter()
    shards = chosen_shards(setup)
    parts = [len(shard.parts) for shard in shards]
    if sum(parts) == 1:
        files = [[run.reserve(REQUESTS)]]
    else:
        files = [
            [run.reserve(f"{REQUESTS}/{k}-{part}.parquet") for part in range(count)]
            for k, count in enumerate(parts)
        ]
    if len(shards) == 1:
        shard = None if sum(parts) == 1 else shards[0]
        served = serve(setup, files[0], compiled=compiled, on_progress=on_progress, shard=shard)
    else:
        served = serve_in_shards(setup, shards, files, compiled=compiled, on_progress=on_progress)
    ended = time.perf_counter()
    every = tuple(file for of_shard in files for file in of_shard)
    is_long = served.stats.arrived > PART_ROWS
    records = Records(tuple((file,) for file in every) if is_long else (every,))
    totals = _totals(setup, served.stats)
    if len(shards) > 1 and is_long:
        keep_freed_memory()
        with worker_pool(min(len(shards), len(usable_cores())), keep_freed_memory) as pool:
            summary = summary_of(setup, records, totals, pool.map)
    else:
        summary = summary_of(setup, records, totals)
    if has_measured(setup):
        summary["measured"] = beside_simulated(records)
    run.write_json("summary", summary)
    _write_timeline(setup, run, served)
    speed = Speed(
        requests=served.stats.arrived,
        shards=len(shards),
        generate_s=served.generate_s,
        events_s=served.events_s,
        records_s=served.records_s,
        simulate_s=ended - started,
        summary_s=time.perf_counter() - ended,
        compiled=compiled,
    )
    run.write_json("speed", speed)
    return Outcome(folder=run.path, summary=summary, speed=speed)


def chosen_shards(setup: RunSetup) -> tuple[Shard, ...]:
    """Return a run's shards, fewer if chips share models."""
    setting, requests = setup.settings["shards"], int(setup.workload.description["requests"])
    if setting == "auto":
        count = cluster_cores(setup.settings["code"]) if cluster_is_named() else len(usable_cores())
    else:
        count = int(setting)
    if setup.workload.loop is not None:  # the next sender depends on all requests
        count = 1
    if count == 1 and requests <= PART_ROWS:
        models = np.arange(len(setup.serving.deployments))
        return (Shard(models=models, parts=(models,)),)
    return split(
        setup.prepared, setup.workload, shards=count, requests=requests, part_rows=PART_ROWS
    )


def _totals(setup: RunSetup, stats: RunStats) -> dict[str, Any]:
    return run_totals(setup.prepared, stats) | {
        "workload": dict(setup.workload.description),
        "chunks": chosen_chunks(setup),
        "notes": list(setup.notes),
    }


def chosen_chunks(setup: RunSetup) -> list[dict[str, Any]]:
    """Return each (architecture, slice) pair's chunk; `fits` if within limits."""
    prepared = setup.prepared
    return [
        {"model": spec.name, "slice": kind.name, "tokens": choice.tokens, "fits": choice.feasible}
        for spec, row in zip(prepared.architectures, prepared.chunks, strict=True)
        for kind, choice in zip(prepared.slice_kinds, row, strict=True)
    ]


def _write_timeline(setup: RunSetup, run: RunDir, served: Served) -> None:
    prepared = setup.prepared
    phases: pa.Table = phases_table(prepared, served.timeline)
    names = {
        i: f"{prepared.slice_kinds[kind].name} #{i}" for i, kind in enumerate(prepared.kind_of)
    }
    with run.open_file("timeline.json.gz") as file:
        write_timeline(
            phases,
            file,
            instance_names=names,
            link_capacity_gbps=served.stats.link_capacity_gbps,
        )


def _draw(setup: RunSetup, run: RunDir) -> None:
    # Importing Matplotlib takes longer than most runs: only here, after the results are printed.
    from experiments.figures.run import draw_run
    from experiments.figures.style import look

    serving = setup.serving
    caption = (
        f"Simulated: {serving.system.name} on {serving.fleet_name}, "
        f"link variant '{serving.link_variant}' "
        f"({setup.prepared.link_capacity_gbps:g} GB/s, host to device), workload "
        f"{setup.workload.description['name']}, seed {setup.seed}."
    )
    requests = pq.read_table(run.path / REQUESTS, columns=list(SUMMARY_COLUMNS))
    with look():
        for name, figure in draw_run(requests, caption).items():
            run.write_figure(name, figure)
