"""Files of tuned results, one per device: content, reading and writing.

The environment variable `PALLAS_KERNELS_TUNED` names the first folder, `tuned/` in this package is
the second. An unreadable file gives a warning, never an error: kernels run without tuned results.
Every entry names its kernel source and jax version; readers use only entries of the present ones.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

FOLDER_VARIABLE = "PALLAS_KERNELS_TUNED"
FORMAT = 2

_PACKAGE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One configuration timed at one alpha."""

    config: Mapping[str, int | bool]
    alpha: float
    time_s: float  # median
    spread: float = 0.0  # interquartile range over the median
    repeats: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.time_s < float("inf"):
            raise ValueError(f"time_s={self.time_s!r}: expected a number above 0")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha={self.alpha!r}: expected a number in [0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Measurement of one problem of one op."""

    op: str
    key: Mapping[str, int | str]  # the problem, e.g. m, k, n, dtype, sm_count
    source: str  # hash of the kernel's source
    provenance: Mapping[str, str]  # jax, jaxlib, driver, date, backend
    measurements: tuple[Measurement, ...]

    def fresh(self, source: str) -> bool:
        """Return True if the entry is of this kernel source and the installed jax."""
        return self.source == source and self.provenance.get("jax") == jax_version()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """All results of a device; `machine` holds measured fields of `hybrid_gemm.Machine`."""

    device: str
    entries: tuple[Entry, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # files left aside, and why

    def with_measurement(self, of: Entry, link_gbps: float) -> Tuned:
        """Return these results with `of` added; it replaces earlier ones of the same settings.

        Args:
          of: entry of one problem; its earlier measurements of the same source and jax stay.
          link_gbps: measured rate of reading host memory; the machine keeps the highest.
        """
        same = [e for e in self.entries if (e.op, dict(e.key)) == (of.op, dict(of.key))]
        new = {_settings(one) for one in of.measurements}
        kept = [
            one
            for entry in same
            if entry.fresh(of.source)
            for one in entry.measurements
            if _settings(one) not in new
        ]
        machine = dict(self.machine)
        if link_gbps > machine.get("link_gbps", 0.0):
            source = f"best launch of the tuner, {of.provenance.get('date', 'no date')}"
            machine |= {"link_gbps": link_gbps, "source": source}
        entry = replace(of, measurements=(*kept, *of.measurements))
        others = tuple(e for e in self.entries if e not in same)
        return replace(self, entries=(*others, entry), machine=machine)


def _settings(one: Measurement) -> tuple[tuple[tuple[str, int | bool], ...], float]:
    return tuple(sorted(one.config.items())), round(one.alpha, 9)


def file_name(device: str) -> str:
    """Return the name of a device's file.

    >>> file_name("NVIDIA H200")
    'nvidia_h200.json'
    """
    return re.sub(r"[^a-z0-9.]+", "_", device.lower()).strip("_") + ".json"


def folders() -> tuple[Path, ...]:
    """Return the folders of the files; the first has precedence."""
    own = os.environ.get(FOLDER_VARIABLE)
    return (*((Path(own),) if own else ()), _PACKAGE / "tuned")


def load(device: str) -> Tuned:
    """Return all results for a device; files are read again only after a change."""
    paths = tuple(folder / file_name(device) for folder in folders())
    return _load(device, tuple((path, _stamp(path)) for path in paths))


def read(path: Path) -> Tuned:
    """Return the results in one file.

    Raises:
      OSError: the file cannot be opened.
      ValueError: the file holds no tuned results; the message names the fault.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"format={data['format']!r}: expected {FORMAT}")
        return Tuned(
            device=str(data["device"]),
            machine=_checked_machine(data["machine"]),
            entries=tuple(_entry(entry) for entry in data["entries"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"expected a file of tuned results: {error!r}") from error


def write(path: Path, tuned: Tuned) -> None:
    """Replace the file atomically: a reader sees the old results or the new ones."""
    data = {
        "format": FORMAT,
        "device": tuned.device,
        "machine": dict(tuned.machine),
        "entries": [asdict(entry) for entry in tuned.entries],
    }
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1, sort_keys=True, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@functools.cache
def source_hash(files: tuple[str, ...]) -> str:
    """Return a hash of files of this package, named relative to it."""
    digest = hashlib.sha256()
    for name in files:
        digest.update(name.encode() + b"\0" + (_PACKAGE / name).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def jax_version() -> str:
    """Return the installed version of jax, without importing it."""
    return importlib.metadata.version("jax")


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@functools.lru_cache(maxsize=64)
def _load(device: str, stamped: tuple[tuple[Path, tuple[int, int] | None], ...]) -> Tuned:
    machine: dict[str, Any] = {}
    entries: list[Entry] = []
    notes: list[str] = []
    for path, stamp in stamped:
        if stamp is None:
            continue
        try:
            one = read(path)
            if one.device != device:
                raise ValueError(f"device={one.device!r}: expected {device!r}")
        except (OSError, ValueError) as error:
            notes.append(f"{path.name} left aside: {error}")
            warnings.warn(f"tuned results {path} left aside: {error}", stacklevel=2)
            continue
        machine = {**one.machine, **machine}
        entries += one.entries
    return Tuned(device=device, entries=tuple(entries), machine=machine, notes=tuple(notes))


def _entry(data: Mapping[str, Any]) -> Entry:
    return Entry(
        op=str(data["op"]),
        key=dict(data["key"]),
        source=str(data["source"]),
        provenance=dict(data["provenance"]),
        measurements=tuple(Measurement(**one) for one in data["measurements"]),
    )


def _checked_machine(data: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, value in data.items():
        if name == "source":
            good = isinstance(value, str)
        elif name == "resident":
            good = all(len(pair) == 2 and min(pair) >= 1 for pair in value)
        else:
            good = isinstance(value, int | float) and 0 < value < float("inf")
        if not good:
            raise ValueError(f"machine.{name}={value!r}: expected a number above 0")
    return dict(data)
