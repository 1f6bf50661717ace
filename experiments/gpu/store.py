"""Results of a section on disk, case by case.

Every finished case is a line appended to `parts.jsonl`; `compact` turns lines and the earlier table
into one Parquet file. The start of a case is a line too: a case that was started `ATTEMPTS` times
and never finished ended its run each time, and is given up for that reason.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from experiments.gpu.cases import Case, Row
from experiments.gpu.files import read_parquet, write_parquet

ATTEMPTS = 2


class Store:
    """Results of one section in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = folder / f"{folder.name}.parquet"
        self.parts = folder / "parts.jsonl"
        self._rows: list[Row] = []
        self._runs: dict[str, Any] = {}
        self._started: Counter[str] = Counter()
        if self.table.exists():
            self._rows, notes = read_parquet(self.table)
            self._runs = dict(notes.get("runs", {}))
        for line in self._lines():
            self._take(line)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Rows measured so far, in order."""
        return tuple(self._rows)

    @property
    def runs(self) -> Mapping[str, Any]:
        """Provenance by run."""
        return self._runs

    def finished(self, *, retry_failed: bool = False, quick: bool = True) -> frozenset[str]:
        """Return the keys of the cases that need not run again.

        Args:
          retry_failed: run failed cases again.
          quick: accept results of quick runs.
        """
        return frozenset(
            row["case"]
            for row in self._rows
            if (row["status"] == "ok" or (row["status"] == "failed" and not retry_failed))
            and (quick or not row.get("quick"))
        )

    def given_up(self, case: Case) -> bool:
        """Return True if the case was begun `ATTEMPTS` times and ended the run each time."""
        return self._started[case.key] >= ATTEMPTS

    def add_run(self, run: str, provenance: Mapping[str, Any]) -> None:
        """Record the provenance of the results of `run`."""
        self._append({"run": run, "provenance": dict(provenance)})

    def begin(self, case: Case) -> None:
        """Record that the case is about to run."""
        self._append({"begin": case.key})

    def interrupt(self, case: Case) -> None:
        """Record that the run stopped the case, which is then no failed attempt."""
        self._append({"interrupt": case.key})

    def finish(self, case: Case, rows: Sequence[Row]) -> None:
        """Record the results of a case, in place of earlier ones unless it runs `always`."""
        self._append({"finish": case.key, "always": case.always, "rows": list(rows)})

    def compact(self) -> None:
        """Write one table of all rows and delete the lines; an interruption loses nothing.

        If that fails for lack of space or of pyarrow, the lines stay and hold the same results.
        """
        if not self._rows:
            return
        used = {row["run"] for row in self._rows if row.get("run")}
        runs = {run: facts for run, facts in self._runs.items() if run in used}
        try:
            write_parquet(self.table, self._rows, {"runs": runs})
        except (OSError, ModuleNotFoundError) as error:
            print(
                f"{self.folder.name}: results stay in {self.parts.name}: {error}", file=sys.stderr
            )
            return
        self.parts.unlink(missing_ok=True)
        for key, times in self._started.items():  # must outlive the lines that were dropped
            for _ in range(times):
                self._write({"begin": key})

    def clear(self) -> None:
        """Rename the present files to new names, which are not read."""
        for path in (self.table, self.parts):
            if path.exists():
                names = (path.with_name(f"old-{number}-{path.name}") for number in count(1))
                path.replace(next(name for name in names if not name.exists()))
        self._rows, self._runs, self._started = [], {}, Counter()

    def _append(self, line: dict[str, Any]) -> None:
        self._write(line)
        self._take(json.loads(json.dumps(line)))

    def _write(self, line: dict[str, Any]) -> None:
        """Append a line; it is on disk when this returns.

        Raises:
          OSError: the line cannot be written; no part of it is left behind.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.parts.open("ab", buffering=0) as parts:
            before = parts.seek(0, os.SEEK_END)
            try:
                left = memoryview(json.dumps(line).encode() + b"\n")
                while left:
                    left = left[parts.write(left) :]
                os.fsync(parts.fileno())
            except OSError:
                parts.truncate(before)
                raise

    def _take(self, line: dict[str, Any]) -> None:
        if "begin" in line:
            self._started[line["begin"]] += 1
        elif "interrupt" in line:
            self._started[line["interrupt"]] -= 1
        elif "finish" in line:
            self._started.pop(line["finish"], None)
            runs = {row["run"] for row in line["rows"]} if line["always"] else set()
            self._rows = [
                row
                for row in self._rows
                if row["case"] != line["finish"] or (runs and row["run"] not in runs)
            ]
            self._rows += line["rows"]
        elif "run" in line:
            self._runs[line["run"]] = line["provenance"]

    def _lines(self) -> list[dict[str, Any]]:
        """Return the lines, after dropping a last line that was cut short."""
        if not self.parts.exists():
            return []
        whole, _, cut = self.parts.read_bytes().rpartition(b"\n")
        if cut:
            os.truncate(self.parts, len(whole) + bool(whole))
        return [json.loads(line) for line in whole.splitlines() if line]
