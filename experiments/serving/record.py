"""What a run of the engine leaves: requests as the simulator records them, steps, settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from c2c.atomic import write_json
from c2c.engine import Engine, steps_table
from c2c.runs import write_parquet
from c2c.serving.state import RECORD_DTYPE
from c2c.simulator import requests_table

__all__ = ["CATALOG", "REQUESTS", "SETTINGS", "STEPS", "write_record"]

REQUESTS, STEPS, SETTINGS, CATALOG = (
    "requests.parquet", "steps.parquet", "settings.json", "catalog.json",
)  # fmt: skip


def write_record(folder: Path, given: Mapping[str, Any], engine: Engine) -> None:
    """Write the tables of a run that is over."""
    assert engine.prepared is not None
    folder.mkdir(parents=True, exist_ok=True)
    records = np.zeros(len(engine.records), RECORD_DTYPE)
    for row, record in enumerate(engine.records):
        records[row] = record
    records = np.sort(records, order="id")
    write_parquet(folder / REQUESTS, requests_table(engine.prepared, records))
    write_parquet(folder / STEPS, steps_table(engine.steps))
    write_json(folder / SETTINGS, {**given, "key": None})
    served = [{"name": e.name, "path": str(e.path)} for e in engine.served]
    write_json(folder / CATALOG, {"models": served})
