"""Calibration constants; `conf/calibration/*.yaml` holds values and sources."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from c2c.cost.host import HostTime
from c2c.errors import DataError, SettingError
from c2c.hardware import Slice, conf_file, conf_names
from c2c.ranges import AboveZero, FromZero, SomeShare, check_fields

__all__ = [
    "GENERIC",
    "CalibrationInputs",
    "Constants",
    "Source",
    "calibration_for",
    "calibration_inputs",
    "calibration_names",
    "calibration_path",
    "in_sample_claims",
    "load_constants",
    "read_constants",
]

SOURCE_KINDS = ("datasheet", "measured", "fitted", "carried", "assumption")

GENERIC = "datasheet"  # calibration of unmeasured chips; their datasheets give the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Origin of a constant.

    `claims` are ids of published values, which never count as reproduced. `rows` are measurements
    of `experiments/measured`, with the error on the `held_out` ones. A `carried` constant has the
    value of another calibration, `chip`.
    """

    kind: str
    why: str
    claims: tuple[str, ...] = ()
    rows: str = ""
    held_out: str = ""
    chip: str = ""


# Beginning of a constant's name -> the part of the cost model.
_PARTS: Final = {
    "gemm": "GEMMs", "expert": "experts", "prefill": "attention", "decode": "attention",
    "l2": "attention", "elementwise": "elementwise work", "step": "a step's overhead",
    "link": "the link's share", "slice": "gain of slices", "switch": "starts",
    "engine_init": "starts", "sllm": "starts", "": "copies and HybridGEMM",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationInputs:
    """Inputs of the fitted constants.

    `claims_s`: published seconds by claim id. `shape`: (M, N, K) of the GEMM timed on `platform` in
    layout `mig`.
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
    """Constants of the cost model, with sources; `host` is an engine's."""

    name: str
    # HybridGEMM over weights in host memory
    mma_efficiency: SomeShare  # sustained share of the dense tensor-core peak in its main loop
    link_efficiency: SomeShare  # share of a slice's link cap that one streaming kernel attains
    reduce_gbps_per_sm: AboveZero  # rate of adding partial sums to O, not overlapped with math
    asym_issue_s: FromZero  # fixed cost of issuing one partial tile's reduction
    hbm_efficiency: SomeShare  # sustained share of HBM bandwidth
    launch_s: FromZero  # one kernel launch inside a captured graph
    # GEMMs over weights in HBM, `c2c.cost.resident`
    gemm_mma_efficiency: SomeShare
    gemm_hbm_efficiency: SomeShare
    gemm_intensity: FromZero  # operations per byte of 16-bit operands that just feed a tile
    gemm_tile_s: FromZero  # start and end of a tile
    gemm_launch_s: FromZero
    gemm_throttle: FromZero  # extra share of tensor-core time at the power limit
    # fused experts over weights in HBM, same meanings
    expert_mma_efficiency: SomeShare
    expert_hbm_efficiency: SomeShare
    expert_intensity: FromZero
    expert_tile_s: FromZero
    expert_floor_s: FromZero  # sorting, activation and sum of a layer
    # attention of a layer, `c2c.cost.attention_time`
    prefill_efficiency: SomeShare  # share of the tensor-core peak attained on (query, key) pairs
    prefill_floor_s: FromZero  # per call
    prefill_head_s: FromZero  # SM-seconds per head of a prompt
    prefill_token_s: FromZero  # SM-seconds per head of a token
    prefill_kv_weight: FromZero  # weight of a key/value head in these two, relative to a query head
    prefill_spill: FromZero  # HBM transfers per byte that the L2 does not hold
    decode_hbm_efficiency: SomeShare
    decode_floor_s: FromZero
    decode_head_s: FromZero  # SM-seconds per key/value head of a sequence
    l2_gain: FromZero  # extra read rate of a cache that the L2 holds, as a share of HBM's rate
    # rest of a layer and of a step
    elementwise_efficiency: SomeShare  # share of HBM bandwidth
    elementwise_s: FromZero  # minimum time of one kernel
    slice_hbm_gain: AboveZero  # HBM efficiency of a MIG slice, relative to the whole chip
    step_overhead_s: FromZero  # host scheduling, once per engine step
    # starts
    switch_dense_s: FromZero  # C2CServe: next model on a warm slice, dense
    switch_moe_s: FromZero
    engine_init_s: FromZero  # C2CServe: engine start on an empty slice
    sllm_init_dense_s: FromZero  # ServerlessLLM: engine initialisation without the weight copy
    sllm_init_moe_s: FromZero
    host: HostTime = field(default_factory=HostTime)
    sources: Mapping[str, Source] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_fields(self, "calibration")

    def having(self, values: Mapping[str, float]) -> "Constants":
        """Return the constants with some values replaced."""
        changed: dict[str, Any] = dict(values)
        return replace(self, **changed)

    def on(self, slice_: Slice) -> "Constants":
        """Return a slice's constants; MIG slices use HBM better."""
        if not slice_.is_cut:
            return self
        shares = {f.name: getattr(self, f.name) for f in fields(self) if _is_of_hbm(f.name)}
        return self.having({n: min(1.0, v * self.slice_hbm_gain) for n, v in shares.items()})

    @property
    def carried(self) -> Mapping[str, tuple[str, ...]]:
        """Parts of the cost model in words, by the chip that lent them."""
        parts: dict[str, dict[str, None]] = {}
        for field_, source in self.sources.items():
            if source.chip:
                part = next(words for start, words in _PARTS.items() if field_.startswith(start))
                parts.setdefault(source.chip, {})[part] = None
        return {chip: tuple(words) for chip, words in parts.items()}

    def switch_s(self, *, moe: bool) -> float:
        """Return C2CServe's switch seconds on a warm slice."""
        return self.switch_moe_s if moe else self.switch_dense_s

    def sllm_init_s(self, *, moe: bool) -> float:
        """Return ServerlessLLM's engine initialisation time, in seconds."""
        return self.sllm_init_moe_s if moe else self.sllm_init_dense_s


def _is_of_hbm(name: str) -> bool:
    return name.endswith("hbm_efficiency") or name == "elementwise_efficiency"


def calibration_names() -> tuple[str, ...]:
    """Return the names of the available calibrations."""
    return conf_names("calibration")


def calibration_path(name: str) -> Path:
    """Return a calibration file's path."""
    names = calibration_names()
    if name not in names:
        raise SettingError("calibration", name, f"one of {', '.join(names) or '(none found)'}")
    return conf_file("calibration", name)


def calibration_for(platform: str) -> str:
    """Return a platform's calibration, or the default one of unmeasured chips."""
    return platform if platform in calibration_names() else GENERIC


def load_constants(name: str = "gh200") -> Constants:
    """Return the constants of `conf/calibration/<name>.yaml`.

    Raises:
      SettingError: unknown name, or a value out of range.
      DataError: a constant or source is missing, unknown or wrongly carried.
    """
    path = calibration_path(name)
    return _parse(_texts(name), name, str(path))


def in_sample_claims(name: str = "gh200") -> frozenset[str]:
    """Return the ids of fitted claims."""
    return frozenset(c for s in load_constants(name).sources.values() for c in s.claims)


def calibration_inputs(name: str = "gh200") -> CalibrationInputs:
    """Return the inputs of a calibration's fitted constants."""
    path = calibration_path(name)
    entry = yaml.safe_load(path.read_text(encoding="utf-8")).get("inputs")
    names = {f.name for f in fields(CalibrationInputs)}
    if not isinstance(entry, dict) or set(entry) != names:
        raise DataError(str(path), f"expected 'inputs' with {', '.join(sorted(names))}")
    inputs = CalibrationInputs(**{**entry, "shape": tuple(entry["shape"])})
    if wrong := in_sample_claims(name).symmetric_difference(inputs.claims_s):
        raise DataError(str(path), f"claims in only one of inputs and sources: {sorted(wrong)}")
    return inputs


def _texts(name: str) -> tuple[tuple[str, str], ...]:
    texts = {name: calibration_path(name).read_text(encoding="utf-8")}
    for chip in _carried_from(texts[name]):
        if chip not in texts:
            texts[chip] = calibration_path(chip).read_text(encoding="utf-8")
    return tuple(texts.items())


@cache
def _carried_from(text: str) -> tuple[str, ...]:
    data = _yaml(text)
    entries = data.get("constants") if isinstance(data, dict) else None
    chips: dict[str, None] = {}
    for entry in entries.values() if isinstance(entries, dict) else ():
        source = entry.get("source") if isinstance(entry, dict) else None
        chip = source.get("chip") if isinstance(source, dict) else None
        if isinstance(chip, str):
            chips[chip] = None
    return tuple(chips)


def _yaml(text: str) -> Any:
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 (a safe one)


@cache
def _parse(texts: tuple[tuple[str, str], ...], name: str, where: str) -> Constants:
    # keyed by file text, so that an edited file never gets an old result
    files = {chip: _yaml(text) for chip, text in texts}
    data = files[name]
    entries = data.get("constants") if isinstance(data, dict) else None
    if not isinstance(entries, dict):
        raise DataError(where, "expected a mapping named 'constants'")
    names = {f.name for f in fields(Constants)} - {"name", "host", "sources"}
    if wrong := names.symmetric_difference(entries):
        raise DataError(where, f"missing or unknown constants: {', '.join(sorted(wrong))}")
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for key, entry in entries.items():
        source = _source(entry, f"{where}: {key}")
        origin = entry
        if source.kind == "carried":
            if "value" in entry:
                raise DataError(f"{where}: {key}", "a carried constant has no value of its own")
            origin = files[source.chip]["constants"].get(key, {})
        values[key] = _number(origin, f"{where}: {key}")
        sources[key] = source
    return Constants(name=name, sources=sources, **values)


def read_constants(path: Path, names: Collection[str]) -> dict[str, tuple[float, Source]]:
    """Return constants and sources of a calibration without a chip.

    Raises:
      DataError: a constant or source is missing or unknown.
    """
    data = _yaml(path.read_text(encoding="utf-8"))
    entries = data.get("constants") if isinstance(data, dict) else None
    if not isinstance(entries, dict) or set(entries) != set(names):
        raise DataError(str(path), f"expected 'constants' with {', '.join(sorted(names))}")
    return {
        key: (_number(entry, f"{path}: {key}"), _source(entry, f"{path}: {key}"))
        for key, entry in entries.items()
    }


def _number(entry: Any, where: str) -> float:
    value = entry.get("value") if isinstance(entry, dict) else None
    if isinstance(value, str) and re.fullmatch(r"[+-]?[\d.]+e\d+", value):
        value = float(value)  # YAML reads 4.0e+8 as a number and 4.0e8 as text
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(where, f"expected a numeric 'value', found {value!r}")
    return float(value)


def _source(entry: Any, where: str) -> Source:
    source = entry.get("source") if isinstance(entry, dict) else None
    if not isinstance(source, dict) or source.get("kind") not in SOURCE_KINDS:
        raise DataError(where, f"expected a source with a kind among {', '.join(SOURCE_KINDS)}")
    claims = tuple(source.get("claims", ()))
    rows, held_out, chip = (str(source.get(k, "")) for k in ("rows", "held_out", "chip"))
    if (source["kind"] == "fitted") != (bool(claims) != bool(rows)):
        raise DataError(where, "expected claims or rows if and only if it is fitted")
    if (source["kind"] == "carried") != bool(chip):
        raise DataError(where, "expected a chip if and only if it is carried")
    if not source.get("why"):
        raise DataError(where, "expected a source with a 'why'")
    return Source(
        kind=source["kind"],
        why=str(source["why"]).strip(),
        claims=claims,
        rows=rows,
        held_out=held_out,
        chip=chip,
    )
