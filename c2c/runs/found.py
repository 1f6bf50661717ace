"""Table of the runs in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import yaml

from c2c.errors import SettingError
from c2c.runs.fields import settings_by_path, summary_fields
from c2c.runs.locking import is_in_use
from c2c.runs.ownership import CRASH, DONE, check_format, own_files

__all__ = ["NOT_INPUTS", "FoundRun", "collect", "find_runs", "read_run", "settings_columns", "tidy"]

type Status = Literal["complete", "running", "failed", "unfinished"]

# Settings that do not change a run's result: its folder, resume, objective and number of processes.
NOT_INPUTS = ("out", "folder", "resume", "overwrite", "objective", "shards")
# Key in the settings of a command that evaluates several runs; such a folder is no simulated run.
COMMAND = "command"
SUMMARY = "summary.json"
_DIFFERING = b"c2c.settings"
_ABSENT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRun:
    """A run read from its folder.

    Attributes:
      status: a killed run is `unfinished`.
      error: reason of a failed or unfinished run, or "".
      settings: by name on the command line; empty if unknown.
      summary: of `summary.json`; empty unless complete.
    """

    run: str
    status: Status
    error: str = ""
    settings: Mapping[str, Any]
    summary: Mapping[str, Any]


def collect(folder: str | Path = "runs/simulate") -> pa.Table:
    """Return a table of a folder's runs, at any depth, sorted by name.

    Columns: `run` (name of the folder), `status` (complete, running, failed, unfinished), `error`;
    each setting that differs; `layout` (MIG); `verdict` and `binds` (see docs/metrics.md); the
    numbers of `summary.json`, named as in `objective`.

    Raises:
      SettingError, DataError: see `find_runs`.
    """
    return tidy(find_runs(Path(folder).expanduser()))


def find_runs(folder: Path) -> list[FoundRun]:
    """Return a folder's simulated runs, sorted by name.

    Raises:
      SettingError: no folder or no run.
      DataError: a run folder of another version of c2c.
    """
    if not folder.is_dir():
        raise SettingError("folder", str(folder), "a folder of runs that exists")
    entries = [read_run(path, _named(path, folder)) for path in _run_folders(folder)]
    if not (runs := [run for run in entries if run is not None]):
        raise SettingError(
            "folder", str(folder), "a folder with simulated runs in it",
            "`c2c simulate` writes them to runs/simulate.",
        )  # fmt: skip
    return sorted(runs, key=lambda run: run.run)


def read_run(folder: Path, name: str) -> FoundRun | None:
    """Return a folder's run, or None.

    Raises:
      DataError: a folder of another version of c2c.
    """
    settings = _yaml(folder / "config.yaml")
    if settings is None or COMMAND in settings or not own_files(folder):
        return None
    check_format(folder)
    status, error = _status(folder)
    summary = _json(folder / SUMMARY) if status == "complete" else {}
    if summary is None:  # a figure, a benchmark
        return None
    inputs = {k: v for k, v in settings.items() if k not in NOT_INPUTS}
    return FoundRun(
        run=name, status=status, error=error, settings=settings_by_path(inputs), summary=summary
    )


def tidy(runs: Sequence[FoundRun]) -> pa.Table:
    """Return runs as a table, see `collect`; null: absent."""
    settings = _differing(runs)
    fields = [summary_fields(run.summary) for run in runs]
    columns: dict[str, pa.Array] = {
        "run": pa.array([run.run for run in runs], pa.string()),
        "status": pa.array([run.status for run in runs], pa.string()),
        "error": pa.array([run.error or None for run in runs], pa.string()),
    }
    for name in settings:
        columns[name] = _column([run.settings.get(name) for run in runs])
    texts = (("layout", "run", "layout"), ("verdict", "verdict", "state"),
             ("binds", "verdict", "binds"))  # fmt: skip
    for name, part, key in texts:
        column = [(run.summary.get(part) or {}).get(key) for run in runs]
        columns[name] = pa.array(column, pa.string())
    for name in dict.fromkeys(name for one in fields for name in one):
        columns.setdefault(name, _column([one.get(name) for one in fields]))
    return pa.table(columns).replace_schema_metadata({_DIFFERING: json.dumps(settings)})


def settings_columns(table: pa.Table) -> list[str]:
    """Return the columns of `tidy` that tell runs apart, without dependent settings."""
    names: list[str] = json.loads((table.schema.metadata or {}).get(_DIFFERING, b"[]"))
    names.sort(key=lambda name: not name.endswith(".name"))  # else in their order
    columns: dict[str, list[Any]] = {}
    for name in names:
        values = [json.dumps(v) for v in table.column(name).to_pylist()]
        group = name.partition(".")[0]
        others = [v for other, v in columns.items() if other.partition(".")[0] == group]
        if not any(_follows(values, other) for other in others):
            columns[name] = values
    return [name for name in table.column_names if name in columns]


def _run_folders(folder: Path) -> Iterator[Path]:
    if (folder / "config.yaml").is_file():
        yield folder
    for inner in sorted(folder.iterdir()):
        # Folders that begin with a dot hold states and logs of sweeps.
        if inner.is_dir() and not inner.is_symlink() and not inner.name.startswith("."):
            yield from _run_folders(inner)


def _named(path: Path, folder: Path) -> str:
    return folder.resolve().name if path == folder else path.relative_to(folder).as_posix()


def _status(folder: Path) -> tuple[Status, str]:
    done = _json(folder / DONE)
    if done is not None:
        lost = [n for n in done.get("results", {}) if not (folder / n).is_file()]
        return ("unfinished", f"{lost[0]} was removed") if lost else ("complete", "")
    if is_in_use(folder):
        return "running", ""
    if (crash := _json(folder / CRASH)) is not None:
        message = str(crash.get("message", "")).strip().splitlines()
        return "failed", ": ".join([str(crash.get("exception")), *message[:1]])
    return "unfinished", "its process was killed; run the same command to repeat it"


def _json(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _yaml(path: Path) -> dict[str, Any] | None:
    try:
        document = _parsed(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, UnicodeDecodeError, yaml.YAMLError):
        return None
    return document if isinstance(document, dict) else None


@lru_cache(maxsize=64)
def _parsed(text: str) -> Any:
    # libyaml's parser takes a tenth of the time, which matters for 1,000 runs.
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506


def _differing(runs: Sequence[FoundRun]) -> list[str]:
    rows = [run.settings for run in runs if run.settings]
    names = dict.fromkeys(name for settings in rows for name in settings)
    return [n for n in names if len({_text(s.get(n, _ABSENT)) for s in rows}) > 1]


def _text(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value, sort_keys=True)


def _follows(values: Iterable[str], other: Iterable[str]) -> bool:
    pairs = set(zip(other, values, strict=True))
    return len(pairs) == len({first for first, _ in pairs})


def _column(values: Sequence[Any]) -> pa.Array:
    kinds = {type(v) for v in values if v is not None}
    if kinds <= {bool}:
        return pa.array(values, pa.bool_())
    if kinds <= {int} and all(v is None or abs(v) < 1 << 63 for v in values):
        return pa.array(values, pa.int64())
    if kinds <= {int, float}:
        return pa.array([None if v is None else float(v) for v in values], pa.float64())
    texts = [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
    return pa.array(texts, pa.string())
