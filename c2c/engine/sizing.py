"""Size of a worker's KV pool from `memory_fraction`: measured once, then stored.

Measurements are in the folder `kv` beside the executables, keyed by all their inputs. A later start
uses one if enough memory is free, else it measures again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from c2c.atomic import write_json
from c2c.engine import messages as say
from c2c.engine.catalog import Entry
from c2c.engine.devices import binding, bound_to, free_bytes
from c2c.engine.fleet import Options, host_weight_bytes, shapes_of, useful_pool_bytes
from c2c.engine.profile import Profiled
from c2c.engine.settings import EngineSettings
from c2c.errors import DataError, SettingError
from c2c.hardware import KvRecord, free_memory_bytes, kv_bytes_of, memory_bytes
from c2c.transformer import superblock_elements
from c2c.transformer.executables import source_of_stages
from pallas_kernels.repository import RepositoryWarning, default_folder, present_versions

__all__ = ["measured_options", "read_record", "room_bytes", "write_record"]

_FOLDER: Final = "kv"
_VERSION: Final = 1
_NOT_IN_KEY: Final = ("pool_bytes", "memory_fraction", "ahead")  # without effect on measurements


async def measured_options(
    entries: Sequence[Entry],
    settings: EngineSettings,
    items: Sequence[say.Item],
    note: Callable[[str], None],
) -> Options:
    """Return the options with `pool_bytes` from `memory_fraction`; unchanged if that is None."""
    options = settings.options
    fraction = options.memory_fraction
    if fraction is None:
        return options
    if options.devices > 1:
        raise SettingError(
            "memory_fraction", fraction, "null with several devices a worker; set pool_bytes"
        )
    store = settings.executables
    folder = None if store is None else default_folder() if store == "auto" else Path(store)
    key = _key(entries, settings)
    free = room_bytes(entries, settings)
    record = None if folder is None else read_record(folder, key, free, fraction)
    if record is None:
        note("measuring the memory available to the KV cache")
        record = _record(await _profiled(settings, entries, items), free)
        if folder is not None:
            write_record(folder, key, record)
        whence = "measured"
    else:
        whence = "measured by an earlier start"
    pool = min(kv_bytes_of(record, fraction), useful_pool_bytes(entries, options))
    note(
        f"the KV cache takes {pool / 1e9:.2f} GB a worker, of {record.whole_bytes / 1e9:.2f} GB "
        f"({whence}: other needs take {record.held_bytes / 1e9:.2f} GB)"
    )
    return replace(options, pool_bytes=pool, memory_fraction=None)


def room_bytes(entries: Sequence[Entry], settings: EngineSettings) -> int:
    """Return the bytes available to each worker, of its device or as a share of the host's.

    Weights that workers share in host memory are subtracted from the host's.
    """
    options = settings.options
    if settings.gpus:
        return min(free_bytes(gpu) for gpu in settings.gpus)
    shared = 0 if options.linear == "reference" else host_weight_bytes(entries, options)
    return max(0, free_memory_bytes() - shared) // options.workers


def read_record(
    folder: Path, key: Mapping[str, Any], free: int, memory_fraction: float
) -> KvRecord | None:
    """Return the record of an earlier start; None if it is absent or, with a warning, unusable.

    A record is usable while the bytes of the share are free; free memory may thus shrink by what
    the share leaves.
    """
    path = _path(folder, key)
    if not path.exists():
        return None
    try:
        told = json.loads(path.read_text("utf-8"))
        if told["version"] != _VERSION or told["key"] != key:
            raise ValueError("it is for other settings")
        record = KvRecord(**{name: int(value) for name, value in told["record"].items()})
        if min(asdict(record).values()) < 0:
            raise ValueError("it has sizes below 0")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        _warn(f"{path}: not a measurement of an earlier start ({problem})")
        return None
    needed = int(memory_fraction * record.whole_bytes)
    if free < needed:
        _warn(f"{free} bytes of memory are free for a worker, the stored size needs {needed}")
        return None
    return record


def write_record(folder: Path, key: Mapping[str, Any], record: KvRecord) -> None:
    """Store a measurement atomically; warn if the folder cannot be written."""
    try:
        write_json(_path(folder, key), {"version": _VERSION, "key": key, "record": asdict(record)})
    except OSError as error:
        warnings.warn(f"{folder}: the size of the KV cache cannot be stored ({error})",
                      RepositoryWarning, stacklevel=2)  # fmt: skip


def _warn(text: str) -> None:
    warnings.warn(f"{text}. The KV cache's size is measured anew.", RepositoryWarning, stacklevel=3)


def _path(folder: Path, key: Mapping[str, Any]) -> Path:
    text = json.dumps(key, sort_keys=True)
    return folder / _FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def _key(entries: Sequence[Entry], settings: EngineSettings) -> dict[str, Any]:
    """Return all inputs of the measurement, as JSON types."""
    given = {k: v for k, v in asdict(settings.options).items() if k not in _NOT_IN_KEY}
    specs = [asdict(replace(e.spec, name="")) for e in entries if e.spec is not None]
    gpus = [(gpu.name, gpu.memory_bytes, gpu.sm_count) for gpu in settings.gpus]
    key = {
        "options": given,
        "models": specs,
        "device": gpus[0] if gpus else ("cpu", memory_bytes(), os.cpu_count()),
        "versions": dict(present_versions()),
        "stages": source_of_stages(),
    }
    found: dict[str, Any] = json.loads(json.dumps(key))  # tuples become lists, as when read
    return found


def _record(said: Profiled, free: int) -> KvRecord:
    whole = min(said.limit_bytes, free) if said.on_gpu else free
    return KvRecord(
        free_bytes=max(0, whole - said.held_bytes),
        held_bytes=said.held_bytes,
        argument_bytes=said.argument_bytes,
        temporary_bytes=said.temporary_bytes,
    )


async def _profiled(
    settings: EngineSettings, entries: Sequence[Entry], items: Sequence[say.Item]
) -> Profiled:
    """Measure in a separate process, so that its memory is freed."""
    options, gpus = settings.options, settings.gpus[:1]
    shapes = shapes_of(options)
    setup = say.Setup(
        models=tuple(items),
        dtype=options.dtype,
        linear=options.linear,
        executables=None,
        rows=shapes.rows,
        budgets=shapes.budgets,
        width=shapes.width,
        superblocks=0,
        superblock=superblock_elements([e.spec for e in entries if e.spec is not None]),
        bound=bound_to(gpus),
        owns_files=settings.pools is None,
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "c2c.engine.profile",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **binding(gpus)},
        start_new_session=True,  # Ctrl-C reaches only the scheduler
    )  # fmt: skip
    try:
        line, _ = await process.communicate(msgspec.json.encode(setup) + b"\n")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        said = msgspec.json.decode(line, type=Profiled)
    except msgspec.DecodeError:
        raise DataError(
            "memory_fraction", f"the measuring process ended with status {process.returncode}"
        ) from None
    if said.failed:
        raise DataError("memory_fraction", f"cannot be measured: {said.failed.rstrip('.')}")
    if said.on_gpu and not gpus:
        raise SettingError("devices", None, "auto with memory_fraction on a GPU")
    return said
