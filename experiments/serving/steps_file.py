"""File of fitted step costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from c2c.atomic import write_text
from c2c.errors import DataError
from experiments.serving.calibration import StepFit

__all__ = ["read_steps", "write_steps"]


def write_steps(path: Path, fits: Mapping[str, StepFit], about: Mapping[str, Any]) -> None:
    """Write step costs by model, with a description."""
    models = {name: fit.as_dict() for name, fit in fits.items()}
    write_text(path, yaml.safe_dump({"measured": dict(about), "models": models}, sort_keys=False))


def read_steps(path: Path) -> dict[str, StepFit]:
    """Return a file's step costs, by model."""
    try:
        models = yaml.safe_load(path.read_text("utf-8"))["models"]
        return {str(name): _fit(entry) for name, entry in models.items()}
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(str(path), f"holds no step costs ({error})") from None


def _fit(entry: Mapping[str, Any]) -> StepFit:
    values = {field.name: entry[field.name] for field in fields(StepFit)}
    for name in ("rows_s", "chunk_s"):
        values[name] = {int(size): float(seconds) for size, seconds in values[name].items()}
    return StepFit(**values)
