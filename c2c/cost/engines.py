"""Non-kernel step costs of other engines: `conf/engines/<name>-<version>.yaml`."""

import math
from dataclasses import dataclass
from typing import Any

from c2c.errors import DataError, unknown_name
from c2c.hardware import conf_names, read_yaml

__all__ = ["Engine", "engine_names", "load_engine"]

_KEYS = {"name", "version", "step_overhead_s", "memory_share"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One version of a serving engine.

    Attributes:
      name, version: name and version of the engine.
      step_overhead_s: host time per step that nothing hides.
      memory_share: share of the GPU's memory for weights and cache.
      sources: sources of these two numbers.
    """

    name: str
    version: str
    step_overhead_s: float
    memory_share: float
    sources: dict[str, str]


def engine_names() -> tuple[str, ...]:
    """Return the names of the available engines, each with its version."""
    return conf_names("engines")


def load_engine(name: str) -> Engine:
    """Return the engine of `conf/engines/<name>.yaml`.

    Raises:
      SettingError: the file does not exist.
      DataError: the file does not describe an engine.
    """
    if name not in engine_names():
        raise unknown_name("engine", name, engine_names())
    data = read_yaml("engines", name)
    where = f"conf/engines/{name}.yaml"
    if wrong := _KEYS.symmetric_difference(data):
        raise DataError(where, f"missing or unknown keys: {', '.join(sorted(map(str, wrong)))}")
    overhead_s = _number(data["step_overhead_s"], f"{where}: step_overhead_s")
    share = _number(data["memory_share"], f"{where}: memory_share")
    if not 0.0 < share <= 1.0:
        raise DataError(f"{where}: memory_share", f"expected a share in (0, 1], found {share}")
    return Engine(
        name=str(data["name"]),
        version=str(data["version"]),
        step_overhead_s=overhead_s,
        memory_share=share,
        sources={k: str(data[k]["source"]) for k in ("step_overhead_s", "memory_share")},
    )


def _number(entry: Any, where: str) -> float:
    value = entry.get("value") if isinstance(entry, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(where, f"expected a numeric 'value', found {value!r}")
    if not (math.isfinite(value) and value >= 0) or not entry.get("source"):
        raise DataError(where, "expected a finite value, at least 0, with a source")
    return float(value)
