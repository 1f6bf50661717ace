"""Assignment of a trace's model ids to the catalog: by name, else by a rule."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from c2c.errors import SettingError
from c2c.models import catalog_names

__all__ = ["OWN", "RULES", "Assigned", "assign_models", "describe_assignment"]

type How = Literal["map", "name", "spec", "rule"]

OWN = "own"
RULES: Mapping[str, str] = {
    OWN: "each id has a deployment of its own",
    "popularity_rank": "ids share the catalog's models in turn, by popularity",
    "round_robin_by_first_seen": "ids share the catalog's models in turn, by first appearance",
}

MOST_OWN = 10_000  # ids with a deployment each: more are users or requests, not models


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """Models assigned to a trace's ids, in order of first appearance.

    Attributes:
      target: id -> deployment.
      how: id -> "map", "name", "spec" or "rule".
      made_of: deployment -> index of its model in catalog + `added`.
      added: shipped models named by ids.
    """

    target: Mapping[str, str]
    how: Mapping[str, How]
    made_of: Mapping[str, int]
    added: tuple[str, ...] = ()


def assign_models(
    requests_of: Mapping[str, int],
    catalog: Sequence[str],
    rule: str = "popularity_rank",
    explicit: Mapping[str, str] | None = None,
    specs: Sequence[str] = (),
    unnamed: str = "",
    *,
    may_add: bool = False,
) -> Assigned:
    """Assign each model id of a trace to a catalog model or an own deployment.

    `explicit` comes first, then the catalog model or spec that the id names: as written, as an end
    after a slash, without case, with `_`, `.` and `-` alike, or without a tuned release's words.
    Next come shipped models outside the catalog, last the rule. By "own" remaining ids get
    deployments of the catalog's models by popularity, then copies in turn; by other rules they
    share its models.
    """
    if rule not in RULES:
        raise SettingError("workload.assignment", rule, f"one of {', '.join(RULES)}")
    explicit = explicit or {}
    _check_explicit(explicit, requests_of, catalog)
    how: dict[str, How] = dict.fromkeys(explicit, "map")
    named: dict[str, int] = {}
    among: Sequence[tuple[How, _Names]] = (
        ("name", _Names(catalog)), ("spec", _Names(specs[: len(catalog)])),
    )  # fmt: skip
    for name in requests_of:
        for kind, names in among:
            if name not in how and (k := names.found(name)) is not None:
                named[name], how[name] = k, kind
    target_of = _shipped([name for name in requests_of if name not in how])
    if target_of and not may_add:
        raise _unserved(*next(iter(target_of.items())), catalog)
    added = tuple(dict.fromkeys(target_of.values()))
    named |= {name: len(catalog) + added.index(model) for name, model in target_of.items()}
    how |= dict.fromkeys(target_of, "name")
    rest = [name for name in requests_of if name not in how]
    how |= dict.fromkeys(rest, "rule")
    every = (*catalog, *added)
    if rule != "round_robin_by_first_seen":
        rest.sort(key=lambda name: -requests_of[name])  # stable: ties stay by first appearance
    made_of = {name: k for k, name in enumerate(every)}
    if rule == OWN:
        if len(how) > MOST_OWN:
            raise SettingError(
                "workload.assignment", rule,
                f"at most {MOST_OWN:,} model ids, of which each has a deployment",
                f"The trace has {len(how):,}, such as {_few(list(requests_of)[:3])}. "
                "workload.columns={model: <column>} names another column, "
                "workload.assignment=popularity_rank shares the catalog's models.",
            )  # fmt: skip
        models = (*(specs or catalog), *added)
        target, made_of = _own(explicit, named, rest, made_of, models, unnamed, len(catalog))
    else:
        target = {**explicit, **{name: every[k] for name, k in named.items()}}
        target |= {name: catalog[r % len(catalog)] for r, name in enumerate(rest)}
    return Assigned(
        target={name: target[name] for name in requests_of},
        how={name: how[name] for name in requests_of},
        made_of=made_of,
        added=added,
    )


def _own(
    explicit: Mapping[str, str],
    named: Mapping[str, int],
    rest: Sequence[str],
    index_of: Mapping[str, int],
    specs: Sequence[str],
    unnamed: str,
    copied: int,
) -> tuple[dict[str, str], dict[str, int]]:
    target, names, more = dict(explicit), list(index_of), dict[str, int]()
    mapped = set(explicit.values())
    free = dict.fromkeys(k for name, k in index_of.items() if name not in mapped)

    def take(name: str, place: int | None, otherwise: int) -> None:
        if place is None:
            more[name] = otherwise
        else:
            del free[place]
            names[place] = name
        target[name] = name

    for name in sorted(named, key=lambda name: name not in index_of):
        k = named[name]
        if k in free or name in index_of:
            free.pop(k, None)
            target[name] = names[k]
        else:
            take(name, next((j for j in free if specs[j] == specs[k]), None), k)
    turns = count()
    for name in rest:
        place = next(iter(free), None)
        if name == unnamed:
            k = place or 0
            free.pop(k, None)
            target[name] = names[k]
        else:
            take(name, place, next(turns) % copied if place is None else 0)
    return target, {name: k for k, name in enumerate(names)} | more


def describe_assignment(
    requests_of: Mapping[str, int],
    assigned: Assigned,
    catalog: Sequence[str],
    rule: str,
    explicit: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return rule, mapping (by popularity), requests per id and model as plain data."""
    by_popularity = sorted(assigned.target, key=lambda name: -requests_of[name])
    requests: dict[str, int] = {}
    for name, target in assigned.target.items():
        requests[target] = requests.get(target, 0) + requests_of[name]
    models = (*catalog, *assigned.added)
    made_of = {name: models[k] for name, k in assigned.made_of.items() if name != models[k]}
    return {
        "rule": rule,
        "rule_says": RULES[rule],
        "kept": [n for n, t in assigned.target.items() if n == t and n not in made_of],
        "explicit": dict(explicit or {}),
        "map": {name: assigned.target[name] for name in by_popularity},
        "requests_of": {name: requests_of[name] for name in by_popularity},
        "how": {name: assigned.how[name] for name in by_popularity},
        "made_of": made_of,
        "requests": dict(sorted(requests.items(), key=lambda item: -item[1])),
    }


_SEPARATORS = str.maketrans("_. ", "---")
# Words of a tuned release, which has the shape of its base model.
_TUNED = re.compile(
    r"(?:^|(?<=/))meta-(?=llama)|(?<=-v\d)-\d{4}$|"
    r"(?:-(?:instruct|chat|thinking|base|it|hf|v0\.\d)(?:-\d{4}$)?)+$",
    re.IGNORECASE,
)


def _loose(name: str) -> str:
    return name.casefold().translate(_SEPARATORS)


class _Names:
    def __init__(self, names: Sequence[str]) -> None:
        first = {name: k for k, name in reversed(list(enumerate(names)))}
        # The first of several copies, x-000, is also x.
        copies = {n.removesuffix("-000"): k for n, k in first.items() if n.endswith("-000")}
        self._names = names
        self._whole: dict[str, list[tuple[str, int]]] = {}
        self._ends: dict[str, list[tuple[str, int]]] = {}
        for name, k in (copies | first).items():
            whole, *ends = _ends(_loose(name))
            self._whole.setdefault(whole, []).append((name, k))
            for end in ends:
                self._ends.setdefault(end, []).append((name, k))

    def found(self, name: str) -> int | None:
        ends = _ends(_loose(name))
        near = [pair for end in ends for pair in self._whole.get(end, ())]
        near += self._ends.get(ends[0], ())
        if not near:
            first, tilde, copy = name.rpartition("~")  # a replica's id names its first's model
            if tilde and copy.isdecimal():
                return self.found(first)
            base = _TUNED.sub("", name)
            # Without a version or size, such as "team-it", it is no release of a model.
            return self.found(base) if base != name and re.search(r"\d", base) else None
        likeness = [_likeness(name, other) for other, _ in near]
        places = {k for (_, k), one in zip(near, likeness, strict=True) if one == min(likeness)}
        if len(places) > 1:
            both = " and ".join(self._names[k] for k in sorted(places))
            raise SettingError(
                "workload.assignment_map", name, "an entry for this id",
                f"It names several models of the catalog: {both}.",
            )  # fmt: skip
        return min(places)


def _likeness(name: str, other: str) -> tuple[int, int]:
    forms = ((name, other), (name.casefold(), other.casefold()), (_loose(name), _loose(other)))
    for k, (mine, its) in enumerate(forms):
        ends = _ends(mine)
        if its in ends or mine in _ends(its):
            return k, ends.index(its) if its in ends else len(ends)
    return len(forms), 0


def _ends(name: str) -> list[str]:
    """Return a name and its ends after each slash, the longest first.

    >>> _ends("hosted_vllm/Qwen/Qwen3-32B")
    ['hosted_vllm/Qwen/Qwen3-32B', 'Qwen/Qwen3-32B', 'Qwen3-32B']
    """
    if "/" not in name:
        return [name]
    parts = name.rsplit("/", 4)  # more are no organisation and provider, but cost their square
    return ["/".join(parts[k:]) for k in range(len(parts))]


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


def _shipped(ids: Sequence[str]) -> dict[str, str]:
    catalog = catalog_names()
    names = _Names(catalog)
    return {name: catalog[k] for name in ids if (k := names.found(name)) is not None}


def _unserved(name: str, model: str, catalog: Sequence[str]) -> SettingError:
    return SettingError(
        "workload.assignment_map",
        name,
        f"a model of the catalog that serves it: {_few(catalog)}",
        f"The trace asks for {model}, which the catalog lacks. Add it "
        f"('catalog.models=[{{spec: {model}}}, ...]'), or set "
        f"'++workload.assignment_map={{{name}: <model>}}'.",
    )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
