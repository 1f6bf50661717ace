"""Bounds of numbers and of sizes in memory."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from c2c.errors import SettingError
from c2c.models import weight_bytes
from c2c.serving import ServingSetup, chip_places, most_engines
from c2c.workloads import WorkloadConfig

__all__ = ["check_catalog_size", "check_memory", "check_numbers", "check_workload", "free_bytes"]

INT_LIMIT = 2**63
# The product of several such numbers is still a finite double.
LARGEST, SMALLEST = 1e30, 1e-30

# Bytes per item, measured on large runs and rounded up.
DEPLOYMENT_BYTES = 2_000  # a model of the catalog, its rows of state
HOME_BYTES = 100  # a model on a chip whose memory holds it
SLICE_BYTES = 1_500  # rows of state, beside the batch
BATCH_BYTES = 16  # a slot in a slice's batch
PHASE_BYTES = 64  # a row of the timeline
SOURCE_MODEL_BYTES = 400  # a model of the generator
HOUR_BYTES = 40  # an hour of a model of the synthetic trace
REPLICA_ROW_BYTES = 24  # a request of a replica's next block
BLOCK_ROWS = 65_536
# A row of the cost table: three numbers for each of 17 alphas, and temporaries of computing them.
COST_ROW_BYTES = 17 * 8 * 14


def check_numbers(settings: Mapping[str, Any]) -> None:
    """Raise for an excessive number or invalid Unicode."""
    for field, value in _leaves(settings, ""):
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int) and not -INT_LIMIT <= value < INT_LIMIT:
            raise SettingError(field, value, "a whole number below 2**63")
        if isinstance(value, float) and math.isnan(value):
            raise SettingError(field, value, "a number")
        # Infinity is a value of some settings, such as a gate that is open; others refuse it.
        if isinstance(value, float) and math.isfinite(value) and not _is_computable(value):
            raise SettingError(field, value, f"0, or a number from {SMALLEST:g} to {LARGEST:g}")
        if isinstance(value, str) and not _is_unicode(value):
            raise SettingError(field, value, "text in UTF-8")


def check_catalog_size(catalog: Mapping[str, Any], free: int) -> None:
    """Raise if copies of models exceed free memory."""
    entries = catalog.get("models")
    for i, entry in enumerate(entries if isinstance(entries, list) else ()):
        copies = entry.get("copies", 1) if isinstance(entry, Mapping) else 1
        if isinstance(copies, int):
            _check(f"catalog.models[{i}].copies", copies, copies * DEPLOYMENT_BYTES, free)


def check_workload(config: WorkloadConfig, free: int) -> None:
    """Raise if generating the workload exceeds the free memory."""
    if config.kind != "trace":
        hours = 24 * config.days if config.kind == "synthetic" else 0
        model_bytes = SOURCE_MODEL_BYTES + HOUR_BYTES * hours
        _check("workload.days", config.days, model_bytes, free)
        _check("workload.models", config.models, config.models * model_bytes, free)
        rows = min(config.requests, BLOCK_ROWS)
    else:
        rows = 1
    _check("workload.replicas", config.replicas, config.replicas * rows * REPLICA_ROW_BYTES, free)


def check_memory(setup: ServingSetup, timeline_rows: int, free: int) -> None:
    """Raise if tables and state exceed the free memory."""
    system = setup.system
    architectures = len({d.spec for d in setup.deployments})
    cuts = [(part.count, chip_places(setup, part)) for part in setup.parts]
    kinds = len({kind for _, cut in cuts for kind in cut})
    slices_in_all = sum(count * len(cut) for count, cut in cuts)
    capacity = max(part.platform.host.memory_bytes for part in setup.parts) // min(
        int(weight_bytes(d.spec)) for d in setup.deployments
    )
    homes = setup.chips * min(len(setup.deployments), max(1, capacity))
    engines = max(most_engines(kind, system) for _, cut in cuts for kind in cut)
    batch = system.max_batch * slices_in_all * engines
    tables = architectures * kinds * COST_ROW_BYTES
    for field, value, needed in (
        ("timeline.rows", timeline_rows, timeline_rows * PHASE_BYTES),
        ("system.profile.chunks", system.profile.chunks, tables * max(system.profile.chunks)),
        ("superchips", setup.chips, slices_in_all * SLICE_BYTES + homes * HOME_BYTES),
        (
            "system.engines.residents",
            system.engines.residents,
            slices_in_all * engines * SLICE_BYTES,
        ),
        ("system.max_batch", system.max_batch, batch * BATCH_BYTES + 2 * tables * system.max_batch),
    ):
        _check(field, value, needed, free)


def free_bytes() -> int:
    """Return the bytes that this process may still take."""
    limits = [_of_machine(), _of_container()]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        limits.append(limit)
    return min(one for one in limits if one is not None)


def _check(field: str, value: object, needed: int, free: int) -> None:
    if needed > free:
        raise SettingError(
            field, value, "a size that fits in memory",
            f"It needs about {needed / 1e9:,.1f} GB; {free / 1e9:,.1f} GB are free.",
        )  # fmt: skip


def _of_machine() -> int:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    lines = dict(line.split(":", 1) for line in text.splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def _of_container() -> int | None:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
    except OSError:
        return None
    return max(0, int(limit) - used) if limit.isdigit() else None


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{i}]")
    else:
        yield path, value


def _is_computable(value: float) -> bool:
    return value == 0 or SMALLEST <= abs(value) <= LARGEST


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
