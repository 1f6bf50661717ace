"""Folder of one run: config first, DONE last."""

from __future__ import annotations

import io
import json
import math
import os
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

import pyarrow as pa
import yaml

from c2c.atomic import atomic_file, write_json, write_text
from c2c.errors import SettingError
from c2c.runs.content import content_key, file_key, plain
from c2c.runs.guard import check_folder
from c2c.runs.locking import take_lock
from c2c.runs.ownership import (
    CRASH,
    DONE,
    FORMAT,
    HEADER,
    JOURNAL,
    LOCK,
    OWN,
    check_format,
    is_inside,
    own_files,
    partials,
)
from c2c.runs.provenance import provenance
from c2c.runs.tables import write_parquet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["RunDir"]

# Formats of a figure, and metadata that would differ between equal runs.
NO_DATE: Mapping[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
PLACES = 9  # decimals of a figure's width and height at which axes are fixed


def _settle(figure: Figure) -> None:
    """Round axes' positions to `PLACES`: last digits differ between processes."""
    if figure.get_layout_engine() is None:
        return
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(v, PLACES) for v in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))


class RunDir:
    """Folder of a run: `with RunDir.open(...) as run: if run.is_complete: return ...`.

    A run is complete if DONE has its inputs' key (configuration, code, data) and its results'
    hashes. Else its own files are removed and it runs again; foreign files stay. An error inside
    the `with` block leaves `crash.json` and no DONE.
    """

    def __init__(
        self, path: Path, *, key: str, config: Any, is_complete: bool, lock: int | None
    ) -> None:
        self.path = path
        self.key = key
        self.is_complete = is_complete
        self._config = config
        self._lock = lock
        self._results: list[str] = []

    @classmethod
    def open(
        cls,
        root: Path,
        config: Mapping[str, Any],
        *,
        packages: Sequence[str] | Mapping[str, str] = (),
        files: Iterable[Path] | Mapping[Path, str] = (),
        ignore: Sequence[str] = (),
        data: Sequence[str] = (),
        seed: int | None = None,
        resume: bool = True,
        overwrite: bool = False,
        names: Iterable[str] = (),
        needs_bytes: int = 0,
        field: str = "out",
    ) -> Self:
        """Open a run's folder; write config and provenance of an incomplete run.

        `packages`, `files` and `ignore`: see `content_key`; `overwrite`, `names` and `needs_bytes`:
        see `check_folder`.

        Args:
          root: made if absent.
          data: top-level keys of data; if they or `files` change, the run is made again in its
            folder.
          resume: False: also run again if complete.
          field: the folder's setting.

        Raises:
          FolderInUse: another process uses it.
          SettingError: see `check_folder`; nothing is changed.
          DataError: a run of another format; nothing is changed.
        """
        settings = plain(config)
        files = files if isinstance(files, Mapping) else tuple(files)
        key = content_key(settings, packages=packages, files=files, ignore=ignore)

        def check() -> None:
            check_folder(
                root, settings, ignore=(*ignore, *data), overwrite=overwrite, names=names,
                needs_bytes=needs_bytes, field=field,
            )  # fmt: skip

        try:
            check_format(root)
            if resume and _is_complete(root, key):
                return cls(root, key=key, config=settings, is_complete=True, lock=None)
            check()
            with _locked(root, field) as lock:
                check()  # nobody else can change it now
                is_complete = resume and _is_complete(root, key)
                if not is_complete:
                    _clear(root)
                    write_text(root / "config.yaml", _as_yaml(settings))
                    facts = {"key": key, "files": [str(file.absolute()) for file in files]}
                    write_json(root / "provenance.json", facts | provenance(seed=seed))
        except OSError as error:
            why = error.strerror or str(error)
            raise SettingError(field, str(root), f"a folder that can be written ({why})") from error
        return cls(root, key=key, config=settings, is_complete=is_complete, lock=lock)

    @staticmethod
    def is_current(
        root: Path,
        config: Mapping[str, Any],
        *,
        packages: Sequence[str] | Mapping[str, str] = (),
        files: Iterable[Path] = (),
        ignore: Sequence[str] = (),
    ) -> bool:
        """Return whether the folder has a complete run of these inputs."""
        settings = plain(config)
        key = content_key(settings, packages=packages, files=files, ignore=ignore)
        return _is_complete(root, key)

    @staticmethod
    def holds(root: Path, key: str) -> bool:
        """Return whether it has a complete run with this key."""
        return _is_complete(root, key)

    def write_table(self, name: str, table: pa.Table | Mapping[str, Any]) -> Path:
        """Write `<name>.parquet`; a mapping gives columns by name."""
        path = self._result(f"{name}.parquet")
        write_parquet(path, table if isinstance(table, pa.Table) else pa.table(dict(table)))
        return path

    def reserve(self, name: str) -> Path:
        """Return a result's path, for an atomic write before the `with` block ends."""
        path = self._result(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def kept_folder(self, name: str) -> Path:
        """Return a folder for state to resume from; it outlives a new run."""
        path = self._inside(name)
        if path.parent != self.path:
            raise SettingError("name", name, "a name without folders")
        path.mkdir(exist_ok=True)
        if not own_files(path):
            if any(path.iterdir()):
                raise SettingError("out", str(self.path), f"a folder without a foreign '{name}'")
            write_text(path / JOURNAL, HEADER + "\n")
        return path

    def write_json(self, name: str, value: Any) -> Path:
        """Write `<name>.json`."""
        path = self._result(f"{name}.json")
        write_json(path, plain(value))
        return path

    def write_text(self, name: str, text: str) -> Path:
        """Write a text file; `name` includes the suffix."""
        path = self._result(name)
        write_text(path, text)
        return path

    @contextmanager
    def open_file(self, name: str) -> Iterator[IO[bytes]]:
        """Yield a file that appears as `name` if the block ends."""
        with atomic_file(self._result(name)) as file:
            yield file

    def write_figure(self, name: str, figure: Figure) -> tuple[Path, ...]:
        """Write `<name>` as PNG, SVG and PDF, with equal bytes for equal figures."""
        import matplotlib as mpl

        _settle(figure)
        paths = tuple(self._result(f"{name}{suffix}") for suffix in NO_DATE)
        with mpl.rc_context({"svg.hashsalt": "c2c"}):
            for path, metadata in zip(paths, NO_DATE.values(), strict=True):
                buffer = io.BytesIO()
                figure.savefig(buffer, format=path.suffix[1:], metadata=metadata)
                with atomic_file(path) as file:
                    file.write(buffer.getvalue())
        return paths

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                if not self.is_complete:
                    # A signal may interrupt the opening of a file, before its cleanup is set up.
                    _remove_unfinished(self.path)
                    with suppress(OSError):  # such as a full disk, which `error` reports already
                        self._write_crash(error)
            elif not self.is_complete:
                self._finish()
        finally:
            if self._lock is not None:
                os.close(self._lock)

    def _inside(self, name: str) -> Path:
        if name in OWN or not is_inside(name):
            raise SettingError("name", name, "a name inside the run folder that is not reserved")
        return self.path / name

    def _result(self, name: str) -> Path:
        if self.is_complete:
            raise RuntimeError(f"{self.path} is complete: check is_complete before writing {name}")
        path = self._inside(name)
        if name not in self._results:
            if path.exists() or path.is_symlink():  # own files were removed before
                raise SettingError("out", str(self.path), f"a folder without a foreign '{name}'")
            with (self.path / JOURNAL).open("a", encoding="utf-8") as journal:
                journal.write(name + "\n")
                journal.flush()
                os.fsync(journal.fileno())
            self._results.append(name)
        return path

    def _finish(self) -> None:
        results = {name: file_key(self.path / name) for name in sorted(self._results)}
        write_json(self.path / DONE, {"format": FORMAT, "key": self.key, "results": results})
        self.is_complete = True

    def _write_crash(self, error: BaseException) -> None:
        write_json(
            self.path / CRASH,
            {
                "exception": type(error).__name__,
                "message": str(error),
                "traceback": traceback.format_exception(error),
                "config": _as_json(self._config),
            },
        )


def _as_yaml(settings: Any) -> str:
    # libyaml if the wheel includes it, ten times as fast
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(settings, Dumper=dumper, sort_keys=False)
    return text


def _as_json(value: Any) -> Any:
    # JSON has no infinity and no NaN; they become text, as YAML writes them.
    if isinstance(value, Mapping):
        return {key: _as_json(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_as_json(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return yaml.safe_dump(value, explicit_end=False).split()[0]
    return value


def _is_complete(root: Path, key: str) -> bool:
    done = root / DONE
    if not done.is_file():
        return False
    try:
        record = json.loads(done.read_text(encoding="utf-8"))
        results = record["results"]
        same_key = record["key"] == key
    except (ValueError, KeyError, TypeError):
        return False  # foreign or damaged: run again
    return same_key and all(
        (root / name).is_file() and file_key(root / name) == digest
        for name, digest in results.items()
    )


@contextmanager
def _locked(root: Path, field: str) -> Iterator[int]:
    missing = [p for p in (root, *root.parents) if not p.exists()]
    lock = None
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = take_lock(root, field)
        yield lock
    except BaseException:
        if lock is not None:
            if missing:
                _remove_own(root)
                (root / LOCK).unlink(missing_ok=True)
            os.close(lock)
        for folder in missing:
            with suppress(OSError):  # another process may have put a file there
                folder.rmdir()
        raise


def _clear(root: Path) -> None:
    _remove_own(root, keep=(JOURNAL,))
    write_text(root / JOURNAL, HEADER + "\n")


def _remove_own(root: Path, keep: Sequence[str] = ()) -> None:
    files = own_files(root)
    if files:
        (root / DONE).unlink(missing_ok=True)
    for path in [*partials(root, files), *(root / n for n in sorted(files - {LOCK, *keep}))]:
        # A folder of results may have become a link to somewhere else.
        if path.parent.resolve().is_relative_to(root.resolve()):
            path.unlink(missing_ok=True)
    for folder in sorted({root / Path(name).parent for name in files}, reverse=True):
        if folder != root and not folder.is_symlink():
            with suppress(OSError):  # not empty
                folder.rmdir()


def _remove_unfinished(root: Path) -> None:
    for path in partials(root, own_files(root)):
        path.unlink(missing_ok=True)
