"""Live runs of traces, each with a record."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.lab.bench.live import Engine, Request, send
from experiments.serving.live_run_simulation import served_requests
from experiments.serving.record import CATALOG

__all__ = ["Host", "capacity_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Server of the traces.

    Attributes:
      settings: of `c2c serve`, without address and folder.
    """

    catalog: Path
    settings: tuple[str, ...]
    runs: Path

    def served(self, name: str, requests: Sequence[Request]) -> Path:
        """Return the record's folder of these requests, run if missing."""
        folder = self.runs / name
        if (folder / CATALOG).is_file():  # written last: the record is complete
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        self.runs.mkdir(parents=True, exist_ok=True)
        engine = Engine(self.catalog, self.runs / f"{name}.log", (*self.settings, f"out={folder}"))
        try:
            engine.start()
            send(engine.ask, requests)
        finally:
            engine.stop()
        return folder


def capacity_of(run: Path) -> float:
    """Return the served requests a second of a burst."""
    table = served_requests(run)
    arrival_s, finished_s = (table[name].to_numpy() for name in ("arrival_s", "finished_s"))
    return len(table) / float(finished_s.max() - arrival_s.min())
