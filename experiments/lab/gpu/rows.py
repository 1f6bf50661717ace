"""Rows on disk: a line of JSON each."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from c2c.errors import DataError
from experiments.lab.gpu.cases import Row

_ATTEMPTS: Final = 2


class Rows:
    """A device's rows in JSON lines, with provenance."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: list[Row] = []
        self.runs: list[Mapping[str, Any]] = []
        self._begun: Counter[str] = Counter()
        if not path.exists():
            return
        whole, _, cut = path.read_bytes().rpartition(b"\n")
        if cut:  # the machine went away in the middle of a line
            os.truncate(path, len(whole) + bool(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                raise DataError(f"{path}:{number}", "expected a line of make gpu") from error

    def finished(self, *, retry_failed: bool = False) -> frozenset[str]:
        """Return the keys of finished cases."""
        over = {"ok"} if retry_failed else {"ok", "failed"}
        lost = {case for case, times in self._begun.items() if times >= _ATTEMPTS}
        return frozenset({row["case"] for row in self.all if row["status"] in over} | lost)

    def add_run(self, provenance: Mapping[str, Any]) -> None:
        """Write the provenance of the rows that follow."""
        self._write({"provenance": dict(provenance)})

    def begin(self, case: str) -> None:
        """Note that a case begins, in case the machine dies."""
        self._write({"begin": case})

    def add(self, rows: Sequence[Row]) -> None:
        """Write one case's rows, in place of its earlier ones."""
        self._write({"rows": list(rows)})

    def _write(self, line: Mapping[str, Any]) -> None:
        """Append a line, wholly on disk or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                rest = memoryview(json.dumps(line).encode() + b"\n")
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(before)
                raise
        self._take(json.loads(json.dumps(line)))

    def _take(self, line: Mapping[str, Any]) -> None:
        if "provenance" in line:
            self.runs.append(line["provenance"])
        elif "begin" in line:
            self._begun[line["begin"]] += 1
        else:
            cases = {row["case"] for row in line["rows"]}
            self.all = [row for row in self.all if row["case"] not in cases] + line["rows"]
            for case in cases:
                del self._begun[case]
