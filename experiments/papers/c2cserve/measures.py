"""Measures of a run, for comparisons of systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from c2c.config import SimulationResult

__all__ = ["MEASURES", "measures", "medians"]

# Column -> path to its number in a run's summary, and factor to the column's unit.
_PATHS: Final[dict[str, tuple[tuple[str, ...], int]]] = {
    **{f"ttft_{p}_s": (("ttft_s", p), 1) for p in ("p50", "p95", "p99")},
    **{f"tpot_{p}_s": (("tpot_s", p), 1) for p in ("p50", "p95", "p99")},
    **{f"{t}_percent": (("attainment", t), 100) for t in ("ttft", "tpot", "both")},
    "switches": (("run", "switches"), 1),
    "link_percent": (("run", "utilisation", "link_mean"), 100),
    "requests": (("requests",), 1),
    "failed": (("failed",), 1),
}
MEASURES: Final = (*_PATHS, "worst_percent")


def measures(result: SimulationResult) -> dict[str, Any]:
    """Return latencies, attainment and switches of a run as columns."""
    values: dict[str, Any] = {}
    for column, (path, factor) in _PATHS.items():
        value: Any = result.summary
        for key in path:
            value = value[key]
        values[column] = None if value is None else factor * value
    models = result.summary["models"].values()
    return values | {"worst_percent": 100.0 * min(m["attainment"]["both"] for m in models)}


def medians(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> list[dict[str, Any]]:
    """Return medians over runs that differ in the seed alone."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in by), []).append(row)
    return [
        {name: value for name, value in group[0].items() if name != "seed"}
        | {name: median(r[name] for r in group) for name in MEASURES if group[0][name] is not None}
        for group in groups.values()
    ]
