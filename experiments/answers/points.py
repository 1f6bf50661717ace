"""Runs in worker processes."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from c2c.atomic import write_json
from c2c.config import RunSetup, build, input_files, prefers_compiled
from c2c.errors import DataError, SettingError
from c2c.runs import NOT_INPUTS, FolderInUse, content_key, file_key, is_in_use
from c2c.simulator import is_compiled
from experiments.children import worker_pool
from experiments.near_runs import busiest_of
from experiments.simulation import Outcome, code_keys, execute, finished, folder_of

__all__ = ["Point", "PointRunner", "needs_compiling"]

POLL_S = 0.2
REFUSED = "refused.json"  # beside the runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Result of a run: folder and summary, or an error."""

    folder: Path | None
    summary: Mapping[str, Any]
    error: str = ""
    was_there: bool = False


def needs_compiling(setup: RunSetup) -> bool:
    """Return whether one run should first compile machine code."""
    return prefers_compiled(setup) and not is_compiled()


class PointRunner:
    """Pool of processes for runs: `with PointRunner(workers) as runner`."""

    def __init__(self, workers: int) -> None:
        self._workers = worker_pool(
            workers,
            lost="that computed a run was killed (out of memory?); run the same command again to "
            "resume",
        )
        self._waiting: dict[Future[Point], tuple[Any, str]] = {}
        self._keys: dict[Path, str] = {}  # of files, hashed once a search
        self._out: Path | None = None
        self._refusals: dict[str, str] | None = None  # errors of earlier searches by content key
        self._known: deque[tuple[Any, Point]] = deque()
        self._is_begun = False

    def __enter__(self) -> Self:
        self._pool = self._workers.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._workers.__exit__(*error)
        if self._refusals and self._out is not None and self._out.is_dir():
            write_json(self._out / REFUSED, self._refusals)

    def ask(self, token: Any, settings: Mapping[str, Any]) -> None:
        """Read or queue a run; `done` yields its token."""
        if (outcome := finished(settings, code_keys(), self._keys)) is not None:
            self._known.append((token, _point(outcome)))
            return
        key = self._key(settings)
        if (error := self._refused(settings, key)) is not None:
            self._known.append((token, Point(folder=None, summary={}, error=error)))
        elif not self._is_begun and (refused := _refused(settings)) is not None:
            self._known.append((token, self._noted(refused, key)))
        else:
            self._is_begun = True
            self._waiting[self._pool.submit(_run, dict(settings))] = token, key

    def done(self) -> Iterator[tuple[Any, Point]]:
        """Yield tokens and results as runs end."""
        while self._known or self._waiting:
            while self._known:
                yield self._known.popleft()
            if not self._waiting:
                return
            over, _ = wait(self._waiting, return_when=FIRST_COMPLETED)
            # Runs that ended together are yielded as queued, so that the output is reproducible.
            for future in [f for f in self._waiting if f in over]:
                token, key = self._waiting.pop(future)
                yield token, self._noted(future.result(), key)

    def _key(self, settings: Mapping[str, Any]) -> str:
        try:
            files = input_files(settings)
            self._keys |= {file: file_key(file) for file in files if file not in self._keys}
        except (SettingError, DataError):
            return ""
        return content_key(
            settings, packages=code_keys(), files={f: self._keys[f] for f in files},
            ignore=NOT_INPUTS,
        )  # fmt: skip

    def _refused(self, settings: Mapping[str, Any], key: str) -> str | None:
        if self._refusals is None:
            self._out, self._refusals = Path(settings["out"]).expanduser(), {}
            with suppress(OSError, ValueError):
                self._refusals = json.loads((self._out / REFUSED).read_text(encoding="utf-8"))
        return self._refusals.get(key) if settings["resume"] else None

    def _noted(self, point: Point, key: str) -> Point:
        if point.error and key and self._refusals is not None:
            self._refusals[key] = point.error
        return point


def _refused(settings: Mapping[str, Any]) -> Point | None:
    try:
        build(settings)
    except (SettingError, DataError) as error:
        return Point(folder=None, summary={}, error=str(error))
    return None


def _run(settings: Mapping[str, Any]) -> Point:
    try:
        setup = build(settings)
        while True:
            try:
                outcome = execute(setup)
            except FolderInUse:
                while is_in_use(folder_of(setup)):
                    time.sleep(POLL_S)
                continue
            return _point(outcome)
    except (SettingError, DataError) as error:
        return Point(folder=None, summary={}, error=str(error))


def _point(outcome: Outcome) -> Point:
    # One model's entry alone: thousands would pass between processes.
    models = outcome.summary["models"]
    busiest = busiest_of(models)
    lean = {**outcome.summary, "models": {busiest: models[busiest]}}
    return Point(folder=outcome.folder, summary=lean, was_there=outcome.skipped)
