"""Assignment of a trace's model ids to models of the catalog: by name, else by a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from c2c.errors import SettingError
from c2c.models import catalog_names

__all__ = ["RULES", "Assigned", "assign_models", "describe_assignment"]

type How = Literal["map", "name", "spec", "rule"]

RULES: Mapping[str, str] = {
    "popularity_rank": "the id of popularity rank r (from 0; ties by first appearance) goes to "
    "catalog[r % len(catalog)]",
    "round_robin_by_first_seen": "the r-th id to appear goes to catalog[r % len(catalog)]",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """Models assigned to the ids of a trace, in order of first appearance.

    Attributes:
      target: id -> catalog name.
      how: id -> "map" (explicit), "name" (of a catalog model), "spec" (of its architecture) or
        "rule".
    """

    target: Mapping[str, str]
    how: Mapping[str, How]


def assign_models(
    requests_of: Mapping[str, int],
    catalog: Sequence[str],
    rule: str = "popularity_rank",
    explicit: Mapping[str, str] | None = None,
    specs: Sequence[str] = (),
) -> Assigned:
    """Assign each model id of a trace to a model of the catalog.

    `explicit` comes first. Next, an id that equals a catalog name or the name of a spec, ignoring
    case, goes to that model; among several copies, to the first. The rule assigns the remaining
    ids, ranked among themselves.

    Args:
      requests_of: model id -> requests, in order of first appearance.
      catalog: names of the models to serve.
      rule: a name in `RULES`.
      explicit: trace id -> catalog name.
      specs: name of the architecture of each catalog model.

    Raises:
      SettingError: unknown rule; an explicit target outside the catalog; an explicit id that the
        trace lacks; an id that names a shipped model outside the catalog.
    """
    if rule not in RULES:
        raise SettingError("workload.assignment", rule, f"one of {', '.join(RULES)}")
    explicit = explicit or {}
    _check_explicit(explicit, requests_of, catalog)
    target: dict[str, str] = dict(explicit)
    how: dict[str, How] = dict.fromkeys(explicit, "map")
    names = _Names.of(catalog, specs)
    for name in requests_of:
        if name not in target and (found := names.named(name)):
            target[name], how[name] = found
    rest = [name for name in requests_of if name not in target]
    _check_unserved(rest, catalog)
    if rule == "popularity_rank":
        rest.sort(key=lambda name: -requests_of[name])  # stable: ties stay by first appearance
    for r, name in enumerate(rest):
        target[name], how[name] = catalog[r % len(catalog)], "rule"
    return Assigned(
        target={name: target[name] for name in requests_of},
        how={name: how[name] for name in requests_of},
    )


def describe_assignment(
    requests_of: Mapping[str, int],
    assigned: Assigned,
    rule: str,
    explicit: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return rule, mapping (by popularity) and requests per catalog model as plain data."""
    by_popularity = sorted(assigned.target, key=lambda name: -requests_of[name])
    requests: dict[str, int] = {}
    for name, target in assigned.target.items():
        requests[target] = requests.get(target, 0) + requests_of[name]
    return {
        "rule": rule,
        "rule_says": RULES[rule],
        "kept": [name for name, target in assigned.target.items() if name == target],
        "explicit": dict(explicit or {}),
        "map": {name: assigned.target[name] for name in by_popularity},
        "how": {name: assigned.how[name] for name in by_popularity},
        "requests": dict(sorted(requests.items(), key=lambda item: -item[1])),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """Case-insensitive index of the catalog by the models' names and their architectures' names."""

    catalog: Sequence[str]
    exact: frozenset[str]
    first: Mapping[str, int]  # the first model of this name
    first_of_spec: Mapping[str, int]

    @classmethod
    def of(cls, catalog: Sequence[str], specs: Sequence[str]) -> _Names:
        first: dict[str, int] = {}
        first_of_spec: dict[str, int] = {}
        for k, name in enumerate(catalog):
            first.setdefault(name.casefold(), k)
        for k, spec in enumerate(specs[: len(catalog)]):
            first_of_spec.setdefault(spec.casefold(), k)
        return cls(
            catalog=catalog, exact=frozenset(catalog), first=first, first_of_spec=first_of_spec
        )

    def named(self, name: str) -> tuple[str, How] | None:
        """Return the model that an id names; an exact match precedes one in another case."""
        if name in self.exact:
            return name, "name"
        wanted = name.casefold()
        # The first of several copies has the suffix -000.
        found = [self.first[n] for n in (wanted, f"{wanted}-000") if n in self.first]
        if found:
            return self.catalog[min(found)], "name"
        spec = self.first_of_spec.get(wanted)
        return None if spec is None else (self.catalog[spec], "spec")


def _check_explicit(
    explicit: Mapping[str, str], requests_of: Mapping[str, int], catalog: Sequence[str]
) -> None:
    for name, target in explicit.items():
        if target not in catalog:
            raise SettingError(
                f"workload.assignment_map.{name}",
                target,
                f"a model of the catalog: {_few(catalog)}",
            )
        if name not in requests_of:
            raise SettingError(
                "workload.assignment_map",
                name,
                f"a model id of the trace: {_few(list(requests_of))}",
            )


def _check_unserved(rest: Sequence[str], catalog: Sequence[str]) -> None:
    """Raise if the trace names a shipped model outside the catalog: no other may replace it.

    Other ids, such as single letters, name no particular model and may be assigned to any.
    """
    known = {name.casefold(): name for name in catalog_names()}
    for name in rest:
        if name.casefold() in known:
            raise SettingError(
                "workload.assignment_map",
                name,
                f"a model of the catalog that serves it: {_few(catalog)}",
                f"The trace asks for {known[name.casefold()]}, which the catalog lacks. Add it, or "
                f"set ++workload.assignment_map.{name}=<model>.",
            )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
