"""Calibration constants: values and sources live in `conf/calibration/*.yaml`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from c2c.errors import DataError, SettingError
from c2c.hardware import conf_dir

__all__ = [
    "CalibrationInputs",
    "Constants",
    "Source",
    "calibration_inputs",
    "calibration_path",
    "in_sample_claims",
    "load_constants",
]

SOURCE_KINDS = ("datasheet", "measured", "fitted", "assumption")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a constant comes from.

    `claims` are the ids of the published values a fitted constant was fitted to: they are
    in-sample and never count as reproduced.
    """

    kind: str
    why: str
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationInputs:
    """What fitted constants are computed from.

    `claims_s`: published seconds by claim id. `shape`: (M, N, K) of the GEMM that was timed on
    `platform` in layout `mig`; `link`: the variant of the link's capacity. The two models are the
    ones whose switch times were published, as far as we can tell.
    """

    platform: str
    mig: str
    link: Literal["datasheet", "measured"]
    shape: tuple[int, int, int]
    dense_model: str
    moe_model: str
    claims_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Constants of the cost model, one meaning each. `sources` says where each value is from."""

    name: str
    # kernels
    mma_efficiency: float  # sustained share of the dense tensor-core peak in a GEMM main loop
    attention_efficiency: float  # the same for prefill attention
    link_efficiency: float  # share of a slice's link cap that one streaming kernel attains
    reduce_gbps_per_sm: float  # partial sums an SM can push into O, not overlapped with math
    asym_issue_s: float  # fixed cost of issuing one partial tile's reduction
    hbm_efficiency: float  # sustained share of HBM bandwidth
    launch_s: float  # one kernel launch inside a captured graph
    step_overhead_s: float  # host scheduling, once an engine step
    # starts
    switch_dense_s: float  # C2CServe: next model on a warm slice, dense
    switch_moe_s: float
    engine_init_s: float  # C2CServe: engine on a slice that runs none yet
    sllm_init_dense_s: float  # ServerlessLLM: engine initialisation beside the weight copy
    sllm_init_moe_s: float
    sources: Mapping[str, Source] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for item in fields(self):
            if item.name in ("name", "sources"):
                continue
            value = getattr(self, item.name)
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise SettingError(f"calibration.{item.name}", value, "a finite number, at least 0")
            if item.name.endswith("_efficiency") and not 0 < value <= 1:
                raise SettingError(f"calibration.{item.name}", value, "a number in (0, 1]")
        if self.reduce_gbps_per_sm <= 0:
            raise SettingError(
                "calibration.reduce_gbps_per_sm", self.reduce_gbps_per_sm, "a number above 0"
            )

    def switch_s(self, *, moe: bool) -> float:
        """Return C2CServe's model-switch time on a warm slice, in seconds."""
        return self.switch_moe_s if moe else self.switch_dense_s

    def sllm_init_s(self, *, moe: bool) -> float:
        """Return ServerlessLLM's engine initialisation time, in seconds."""
        return self.sllm_init_moe_s if moe else self.sllm_init_dense_s


def calibration_path(name: str) -> Path:
    """Return the file of a named calibration.

    Raises:
      SettingError: there is no such file; lists those that exist.
    """
    folder = conf_dir() / "calibration"
    known = sorted(p.stem for p in folder.glob("*.yaml"))
    if name not in known:
        raise SettingError("calibration", name, f"one of {', '.join(known) or '(none found)'}")
    return folder / f"{name}.yaml"


def load_constants(name: str = "gh200") -> Constants:
    """Return the constants of `conf/calibration/<name>.yaml`.

    Raises:
      SettingError: unknown name, or a value out of range.
      DataError: the file misses a constant or a source, or holds one that is not known.
    """
    path = calibration_path(name)
    return _parse(path.read_text(encoding="utf-8"), name, str(path))


def in_sample_claims(name: str = "gh200") -> frozenset[str]:
    """Return the ids of the claims some constant was fitted to."""
    return frozenset(c for s in load_constants(name).sources.values() for c in s.claims)


def calibration_inputs(name: str = "gh200") -> CalibrationInputs:
    """Return what the fitted constants of a calibration are computed from.

    Raises:
      SettingError: unknown name.
      DataError: the file has no usable `inputs`, or they are not the claims it names as fitted.
    """
    path = calibration_path(name)
    entry = yaml.safe_load(path.read_text(encoding="utf-8")).get("inputs")
    wanted = {f.name for f in fields(CalibrationInputs)}
    if not isinstance(entry, dict) or set(entry) != wanted:
        raise DataError(str(path), f"expected 'inputs' with {', '.join(sorted(wanted))}")
    inputs = CalibrationInputs(**{**entry, "shape": tuple(entry["shape"])})
    if wrong := in_sample_claims(name).symmetric_difference(inputs.claims_s):
        raise DataError(str(path), f"claims in only one of inputs and sources: {sorted(wrong)}")
    return inputs


@cache
def _parse(text: str, name: str, where: str) -> Constants:
    # keyed by the text itself, so an edited file is never answered from an old entry
    data = yaml.safe_load(text)
    entries = data.get("constants") if isinstance(data, dict) else None
    if not isinstance(entries, dict):
        raise DataError(where, "expected a mapping named 'constants'")
    wanted = {f.name for f in fields(Constants)} - {"name", "sources"}
    if wrong := wanted.symmetric_difference(entries):
        raise DataError(where, f"missing or unknown constants: {', '.join(sorted(wrong))}")
    values: dict[str, float] = {}
    sources: dict[str, Source] = {}
    for key, entry in entries.items():
        values[key] = _number(entry, f"{where}: {key}")
        sources[key] = _source(entry.get("source"), f"{where}: {key}")
    return Constants(name=name, sources=sources, **values)


def _number(entry: Any, where: str) -> float:
    value = entry.get("value") if isinstance(entry, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(where, f"expected a numeric 'value', found {value!r}")
    return float(value)


def _source(source: Any, where: str) -> Source:
    if not isinstance(source, dict) or source.get("kind") not in SOURCE_KINDS:
        raise DataError(where, f"expected a source with a kind among {', '.join(SOURCE_KINDS)}")
    claims = tuple(source.get("claims", ()))
    if (source["kind"] == "fitted") != bool(claims):
        raise DataError(where, "claims belong to every fitted constant and to no other")
    if not source.get("why"):
        raise DataError(where, "every source says why")
    return Source(kind=source["kind"], why=str(source["why"]).strip(), claims=claims)
