"""Serving engines by name and version: `conf/engines/<name>-<version>.yaml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from c2c.cost.constants import Constants
from c2c.cost.host import HostTime
from c2c.cost.step import ELEMENTWISE_KERNELS_PER_LAYER
from c2c.errors import DataError, SettingError, unknown_name
from c2c.hardware import conf_names, read_yaml
from c2c.ranges import Count, FromZero, SomeShare, check_fields

__all__ = ["Engine", "engine_names", "load_engine"]

_NUMBERS: Final = (
    "step_overhead_s", "layer_s", "request_s", "memory_share", "chunk_tokens", "max_batch",
)  # fmt: skip
_KEYS: Final = {"name", "version", "batch", *_NUMBERS}
_HOST: Final = ("layer_s", "expert_s", "visits", "sequence_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One version of a serving engine.

    Attributes:
      step_overhead_s: host time per step that nothing hides.
      layer_s: a layer's small kernels at few tokens; None: the calibration's.
      request_s: a request before its first step.
      memory_share: share of the GPU's memory in use.
      chunk_tokens: most tokens of a step.
      max_batch: most requests of a step.
      batch: policy of `system/batch`.
      host: host time that the GPU hides; none if a graph launches steps.
      sources: of each number.
    """

    name: str
    version: str
    step_overhead_s: FromZero
    layer_s: FromZero | None
    request_s: FromZero
    memory_share: SomeShare
    chunk_tokens: Count
    max_batch: Count
    batch: str
    host: HostTime
    sources: Mapping[str, str]

    @property
    def label(self) -> str:
        """Name and version, as in the output of runs."""
        return f"{self.name} {self.version}"

    def constants(self, base: Constants, host_factor: float | None = None) -> Constants:
        """Return a chip's constants with this engine's times of step and layer.

        Args:
          host_factor: time of the chip's host over the measured one's.
        """
        changed = {"step_overhead_s": self.step_overhead_s}
        if self.layer_s is not None:
            changed["elementwise_s"] = self.layer_s / ELEMENTWISE_KERNELS_PER_LAYER
        return replace(base.having(changed), host=self.host.scaled(host_factor or 1.0))


def engine_names() -> tuple[str, ...]:
    """Return the available engines' names and versions."""
    return conf_names("engines")


def load_engine(name: str) -> Engine:
    """Return an engine by name, or by name and version.

    "vllm" is its newest file, "vllm-0.16" the nearest version.

    Raises:
      SettingError: no engine of this name.
      DataError: the file describes no engine.
    """
    names = engine_names()
    if name.lower() in names:
        return _read(name.lower())
    family, _, version = name.partition("-")
    versions = sorted(
        (n.partition("-")[2] for n in names if n.partition("-")[0] == family.lower()
         and n.count("-") == 1),
        key=_parts,
    )  # fmt: skip
    if not versions:
        raise unknown_name("engine", name, sorted({n.partition("-")[0] for n in names} | {*names}))
    if version and version != "-":
        target = _parts(version)
        far = {v: [abs(a - b) for a, b in zip(_parts(v), target, strict=True)] for v in versions}
        return _read(f"{family.lower()}-{min(versions, key=far.__getitem__)}")
    return _read(f"{family.lower()}-{versions[-1]}")


def _parts(version: str) -> tuple[int, ...]:
    """Return a version's numbers; a release candidate is before its release.

    >>> sorted(["1.0.0", "1.0.0rc3", "0.19"], key=_parts)
    ['0.19', '1.0.0rc3', '1.0.0']
    """
    release, _, candidate = version.partition("rc")
    numbers = [int(n) for n in re.findall(r"\d+", release)[:3]]
    after = int(re.findall(r"\d+", candidate)[0]) if re.match(r"\d", candidate) else 1_000_000
    return (*numbers, *(0,) * (3 - len(numbers)), after)


def _read(name: str) -> Engine:
    data, where = read_yaml("engines", name), f"conf/engines/{name}.yaml"
    if wrong := _KEYS.symmetric_difference(data.keys() - {"host"}):
        raise DataError(where, f"missing or unknown keys: {', '.join(sorted(map(str, wrong)))}")
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    host = data.get("host", {})
    if not isinstance(host, dict) or not set(host) <= {*_HOST}:
        raise DataError(f"{where}: host", f"expected some of {', '.join(_HOST)}, found {host!r}")
    for key, entry in (*((n, data[n]) for n in _NUMBERS), *((f"host.{n}", host[n]) for n in host)):
        if not isinstance(entry, dict) or set(entry) != {"value", "source"} or not entry["source"]:
            raise DataError(f"{where}: {key}", f"expected a value with a source, found {entry!r}")
        values[key], sources[key] = entry["value"], str(entry["source"])
    try:
        engine = Engine(
            name=str(data["name"]), version=str(data["version"]), batch=str(data["batch"]),
            host=HostTime(**{n: values.pop(f"host.{n}") for n in host}), sources=sources, **values,
        )  # fmt: skip
        check_fields(engine, where)
    except SettingError as error:
        raise DataError(where, str(error)) from error
    return engine
