"""Model ids of a trace to models of the catalog, by a stated rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from c2c.errors import SettingError

__all__ = ["RULES", "assign_models", "describe_assignment"]

RULES: Mapping[str, str] = {
    "popularity_rank": "the id of popularity rank r (from 0; ties by first appearance) goes to "
    "catalog[r % len(catalog)]",
    "round_robin_by_first_seen": "the r-th id to appear goes to catalog[r % len(catalog)]",
}


def assign_models(
    requests_of: Mapping[str, int],
    catalog: Sequence[str],
    rule: str = "popularity_rank",
    explicit: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Assign each model id of a trace to a model of the catalog.

    Ids in `explicit` go where it says; ids that are catalog names stay; the rest follow the rule,
    ranked among themselves.

    Args:
      requests_of: model id -> requests, in order of first appearance.
      catalog: names of the models to serve.
      rule: a name in `RULES`.
      explicit: trace id -> catalog name.

    Returns:
      Trace id -> catalog name, in order of first appearance.

    Raises:
      SettingError: unknown rule, an explicit target outside the catalog or an id the trace lacks.
    """
    if rule not in RULES:
        raise SettingError("workload.assignment", rule, f"one of {', '.join(RULES)}")
    explicit = explicit or {}
    known = set(catalog)
    for name, target in explicit.items():
        if target not in known:
            raise SettingError(
                f"workload.assignment_map.{name}",
                target,
                f"a model of the catalog: {_few(catalog)}",
            )
        if name not in requests_of:
            raise SettingError(
                "workload.assignment_map",
                name,
                f"model ids of the trace: {_few(list(requests_of))}",
            )
    rest = [name for name in requests_of if name not in explicit and name not in known]
    if rule == "popularity_rank":
        rest.sort(key=lambda name: -requests_of[name])  # stable: ties stay by first appearance
    placed = {name: catalog[r % len(catalog)] for r, name in enumerate(rest)}
    return {name: explicit.get(name, placed.get(name, name)) for name in requests_of}


def describe_assignment(
    requests_of: Mapping[str, int],
    assigned: Mapping[str, str],
    rule: str,
    explicit: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return rule, mapping (by popularity) and requests per catalog model as plain data."""
    by_popularity = sorted(assigned, key=lambda name: -requests_of[name])
    requests: dict[str, int] = {}
    for name, target in assigned.items():
        requests[target] = requests.get(target, 0) + requests_of[name]
    return {
        "rule": rule,
        "rule_says": RULES[rule],
        "kept": [name for name, target in assigned.items() if name == target],
        "explicit": dict(explicit or {}),
        "map": {name: assigned[name] for name in by_popularity},
        "requests": dict(sorted(requests.items(), key=lambda item: -item[1])),
    }


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
