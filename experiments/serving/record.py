"""Files of a live run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from c2c.atomic import write_json
from c2c.engine import Engine
from c2c.runs import write_parquet
from c2c.simulator import requests_table
from experiments.serving.machine import write_machine

__all__ = ["CATALOG", "INPUTS", "REQUESTS", "SETTINGS", "STEPS", "write_record"]

REQUESTS, STEPS, INPUTS, SETTINGS, CATALOG = (
    "requests.parquet", "steps.parquet", "inputs.parquet", "settings.json", "catalog.json",
)  # fmt: skip


def write_record(folder: Path, settings: Mapping[str, Any], engine: Engine) -> None:
    """Write a run's files; the key is left out."""
    assert engine.prepared is not None
    folder.mkdir(parents=True, exist_ok=True)
    write_parquet(folder / REQUESTS, requests_table(engine.prepared, engine.tape.records()))
    write_parquet(folder / STEPS, engine.tape.steps())
    write_parquet(folder / INPUTS, engine.tape.inputs())
    write_machine(folder, engine.others)
    sized = {"pool_bytes": engine.options.pool_bytes, "memory_fraction": None}
    write_json(folder / SETTINGS, {**settings, **sized, "key": None})
    served = [{"name": e.name, "path": str(e.path)} for e in engine.served]
    write_json(folder / CATALOG, {"models": served})
