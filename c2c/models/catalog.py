"""Catalogs of deployments with targets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from c2c.errors import DataError, SettingError, check_keys, unknown_name
from c2c.hardware import conf_dir
from c2c.models.adapters import Adapter, adapted, adapter_bytes
from c2c.models.load import load_spec
from c2c.models.precision import at_precision
from c2c.models.spec import ModelSpec
from c2c.models.weights import weight_bytes
from c2c.ranges import AboveZero, Count, In, check_fields, check_value

__all__ = ["Deployment", "catalogs", "host_bytes", "is_shipped", "load_catalog"]

DEFAULT_TTFT_SLO_S = 1.0  # C2CServe section 9.3
LONGEST_NAME = 200
DEFAULT_TPOT_SLO_S = 0.2  # five tokens a second, about reading speed; the paper prints none


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A served model; an `adapter`'s spec, weights and targets are those of `base`."""

    name: str
    spec: ModelSpec
    ttft_slo_s: AboveZero
    tpot_slo_s: AboveZero
    # Of its requests; a higher number is more urgent.
    priority: Annotated[int, In("(-2**31, 2**31)")] = 0
    # Seconds after arrival at which a request is given up; inf: never.
    deadline_s: Annotated[float, In("(0, inf]")] = math.inf
    base: str = ""
    adapter: Adapter | None = None

    def __post_init__(self) -> None:
        if not (0 < len(self.name) <= LONGEST_NAME and self.name.isprintable()):
            allowed = f"a name of 1 to {LONGEST_NAME} printable characters"
            raise SettingError("catalog.name", self.name[: 2 * LONGEST_NAME], allowed)
        check_fields(self, f"catalog.{self.name}")


def catalogs() -> tuple[str, ...]:
    """Return the names of the available catalogs."""
    return tuple(sorted(p.stem for p in (conf_dir() / "catalog").glob("*.yaml")))


def is_shipped(catalog: Mapping[str, Any]) -> bool:
    """Return whether a catalog equals its file in `conf/catalog`."""
    name = catalog.get("name")
    return name in catalogs() and load_catalog(str(name)) == load_catalog(catalog)


def load_catalog(
    name_or_mapping: str | Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> tuple[Deployment, ...]:
    """Return a catalog's deployments, most popular first.

    `copies` above 1 give `<name>-000`, `<name>-001` and so on; the default name is the spec's.
    Order "round_robin" takes entries in turn, "sequential" (the default) all copies of one.

    Args:
      name_or_mapping: a name of `conf/catalog/*.yaml`, a mapping with `models` and optionally
        `order`, or the list alone. An entry has spec (see `load_spec`) and optionally name, copies,
        ttft_slo_s, tpot_slo_s, priority, deadline_s, precision (see `at_precision`) and spec_name,
        by which layouts tell equal specs apart. An adapter's has name, base (an entry's name), rank
        and optionally modules (see `Adapter`), copies, priority, deadline_s.

    Raises:
      SettingError: an unknown catalog, key or model, a bad value, or a repeated name.
      DataError: the file is not YAML.
    """
    data: Any = _read(name_or_mapping) if isinstance(name_or_mapping, str) else name_or_mapping
    order: Any = "sequential"
    if isinstance(data, Mapping):
        check_keys(data, ("name", "order", "models"), "catalog")
        order = data.get("order", "sequential")
        data = data.get("models")
    check_value(order, Literal["sequential", "round_robin"], "catalog.order")
    if isinstance(data, str) or not isinstance(data, Sequence) or not data:
        raise SettingError("catalog.models", data, "a list of at least one entry")
    groups = _groups([(f"catalog.models[{i}]", entry) for i, entry in enumerate(data)])
    if order == "round_robin":
        longest = max(len(g) for g in groups)
        result = tuple(g[i] for i in range(longest) for g in groups if i < len(g))
    else:
        result = tuple(d for g in groups for d in g)
    seen: set[str] = set()
    for d in result:
        if d.name in seen:
            raise SettingError(
                "catalog.name", d.name, "a name that occurs once",
                "Give one of the entries another name.",
            )  # fmt: skip
        seen.add(d.name)
    return result


def _read(name: str) -> Any:
    import yaml  # imported here: specs alone can be read without it

    if name not in catalogs():
        raise unknown_name("catalog", name, catalogs())
    path = conf_dir() / "catalog" / f"{name}.yaml"
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as err:
        raise DataError(str(path), f"not YAML: {err}") from err


def host_bytes(deployments: Sequence[Deployment]) -> NDArray[np.float64]:
    """Return deployments' host bytes; adapters' with the base's."""
    row = {d.name: k for k, d in enumerate(deployments)}
    result = np.array([0.0 if d.adapter else float(weight_bytes(d.spec)) for d in deployments])
    for d in deployments:
        if d.adapter is not None:
            result[row[d.base]] += adapter_bytes(d.spec, d.adapter)
    return result


def _groups(entries: Sequence[tuple[str, object]]) -> list[list[Deployment]]:
    for where, entry in entries:
        if not isinstance(entry, Mapping):
            raise SettingError(where, entry, "a mapping with a spec, or with a base")
    groups: dict[str, list[Deployment]] = {}
    for where, entry in entries:
        if "base" not in entry:  # type: ignore[operator]
            groups[where] = _entry(entry, where)  # type: ignore[arg-type]
    bases = {d.name: d for group in groups.values() for d in group}
    for where, entry in entries:
        if where not in groups:
            groups[where] = _adapters(entry, where, bases)  # type: ignore[arg-type]
    return [groups[where] for where, _ in entries]


def _adapters(
    entry: Mapping[str, Any], where: str, bases: Mapping[str, Deployment]
) -> list[Deployment]:
    keys = ("name", "base", "rank", "modules", "copies", "priority", "deadline_s")
    check_keys(entry, keys, where)
    name, base, modules = entry.get("name"), entry["base"], entry.get("modules") or ()
    if not isinstance(base, str) or base not in bases:
        allowed = f"the name of an entry with a spec: {', '.join(list(bases)[:20]) or 'none'}"
        raise SettingError(f"{where}.base", base, allowed)
    if not isinstance(name, str):
        raise SettingError(f"{where}.name", name, "a string")
    is_list = not isinstance(modules, str) and isinstance(modules, Sequence)
    if not is_list or not all(isinstance(module, str) for module in modules):
        raise SettingError(f"{where}.modules", modules, "a list of names such as q_proj")
    check_value(entry.get("rank"), Count, f"{where}.rank")
    one = bases[base]
    adapter = Adapter(rank=entry["rank"], modules=tuple(modules))
    adapted(one.spec, adapter, f"{where}.modules")
    return [
        replace(
            one, name=n, base=base, adapter=adapter, priority=entry.get("priority", one.priority),
            deadline_s=one.deadline_s if entry.get("deadline_s") is None else entry["deadline_s"],
        )
        for n in _names(name, entry, where)
    ]  # fmt: skip


def _names(name: str, entry: Mapping[str, Any], where: str) -> list[str]:
    copies = entry.get("copies", 1)
    check_value(copies, Count, f"{where}.copies")
    return [name] if copies == 1 else [f"{name}-{i:03d}" for i in range(copies)]


def _entry(entry: Mapping[str, Any], where: str) -> list[Deployment]:
    keys = ("name", "spec", "spec_name", "copies", "ttft_slo_s", "tpot_slo_s", "priority",
             "deadline_s", "precision")  # fmt: skip
    check_keys(entry, keys, where)
    model = entry.get("spec")
    if not isinstance(model, str):
        raise SettingError(f"{where}.spec", model, "a model's name or path")
    check_value(entry.get("copies", 1), Count, f"{where}.copies")
    spec = load_spec(model)
    if entry.get("precision") is not None:
        spec = at_precision(spec, entry["precision"], f"{where}.precision")
    spec_name = entry.get("spec_name") or spec.name
    if not isinstance(spec_name, str):
        raise SettingError(f"{where}.spec_name", spec_name, "a string")
    if spec_name != spec.name:
        spec = replace(spec, name=spec_name)
    name = entry.get("name") or spec.name
    if not isinstance(name, str):
        raise SettingError(f"{where}.name", name, "a string")
    ttft, tpot = entry.get("ttft_slo_s"), entry.get("tpot_slo_s")
    return [
        Deployment(
            name=n,
            spec=spec,
            ttft_slo_s=DEFAULT_TTFT_SLO_S if ttft is None else ttft,
            tpot_slo_s=DEFAULT_TPOT_SLO_S if tpot is None else tpot,
            priority=entry.get("priority", 0),
            deadline_s=math.inf if entry.get("deadline_s") is None else entry["deadline_s"],
        )
        for n in _names(name, entry, where)
    ]
