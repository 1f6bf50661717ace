"""Public engine runs near a question."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_type_hints

import numpy as np

from c2c.cost import Constants, calibration_for, load_constants
from c2c.hardware import Platform, collectives_chip, platforms, slices
from c2c.models import ModelSpec
from c2c.policies import weights_in
from c2c.serving import FleetPart, ServingSetup
from experiments.plain_engine import Load

__all__ = [
    "ERRORS",
    "FACTOR",
    "UNKNOWN",
    "Nearest",
    "RunError",
    "borrowed",
    "busiest_of",
    "error_line",
    "nearest",
    "precision_of",
    "read_errors",
]

ERRORS: Final = Path(__file__).parent / "measured" / "engine_errors.csv"
UNKNOWN: Final = "no measured run is near: expect 25 %"
FACTOR: Final = 2.0  # of lengths, clients and chips of near runs
ENOUGH: Final = 3  # near runs


@dataclass(frozen=True, slots=True, kw_only=True)
class RunError:
    """A public run's setting, and the simulator's relative errors; NaN: not compared."""

    chip: str
    engine: str
    model: str
    kind: str
    precision: str
    load: str
    isl: int
    osl: int
    clients: int
    tp: int
    held_out: bool
    tpot: float
    ttft: float
    tokens_s: float


def read_errors(path: Path = ERRORS) -> tuple[RunError, ...]:
    """Return the stored errors."""
    lines = [x for x in path.read_text(encoding="utf-8").splitlines() if not x.startswith("#")]
    kinds = get_type_hints(RunError)
    errors = []
    for row in csv.DictReader(lines):
        values: dict[str, Any] = {
            name: row[name] == "1" if kind is bool else kind(row[name])
            for name, kind in kinds.items()
        }
        errors.append(RunError(**values))
    return tuple(errors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """Near public runs, and their common traits in words."""

    runs: tuple[RunError, ...]
    of: str

    def says(self, figure: str) -> str:
        """Return the error of one figure in words."""
        error = np.array([abs(v) for e in self.runs if np.isfinite(v := getattr(e, figure))])
        if not len(error):
            return UNKNOWN
        return (
            f"{len(error)} measured runs are near: median {100 * np.median(error):.0f} %, "
            f"90th percentile {100 * np.quantile(error, 0.9):.0f} %"
        )


def nearest(
    errors: Sequence[RunError], *, chip: str, kind: str, precision: str, tp: int, load: Load
) -> Nearest:
    """Return held-out runs within a factor of two."""
    holdout = [e for e in errors if e.held_out and e.kind == kind and e.precision == precision]
    near = [
        e for e in holdout
        if all(
            1 / FACTOR <= ours / theirs <= FACTOR
            for ours, theirs in ((load.isl, e.isl), (load.osl, e.osl), (tp, e.tp))
        )
        and (not load.clients or 1 / FACTOR <= load.clients / e.clients <= FACTOR)
    ]  # fmt: skip
    chip_errors = tuple(e for e in near if e.chip == chip)
    if len(chip_errors) >= ENOUGH:
        return Nearest(runs=chip_errors, of=f"{kind} models at {precision} on {chip}")
    if len(near) >= ENOUGH:
        chips = ", ".join(sorted({e.chip for e in near}))
        return Nearest(runs=tuple(near), of=f"{kind} models at {precision} on {chips}")
    return Nearest(runs=(), of="")


def precision_of(spec: ModelSpec) -> str:
    """Return a model's product precision, as runs name it."""
    return "bf16" if spec.weights is None else (
        spec.weights.kernel if spec.weights.kernel != "bf16" else f"int{spec.weights.bits}"
    )  # fmt: skip


def busiest_of(models: Mapping[str, Any]) -> str:
    """Return a summary's model with most output tokens."""
    return max(models, key=lambda name: models[name]["output_tokens"])


def error_line(serving: ServingSetup, summary: Mapping[str, Any]) -> str:
    """Return the error of near measured runs."""
    if any(why := [_unlike(serving, part) for part in serving.parts]):
        return f"{UNKNOWN} ({', '.join(sorted(set(filter(None, why))))})"
    if not summary["finished"]:
        return f"{UNKNOWN} (no request was served)"
    models, run = summary["models"], summary["run"]
    name = busiest_of(models)
    busiest, totals = next(d for d in serving.deployments if d.name == name), models[name]
    load = Load(
        isl=max(1, round(totals["prompt_tokens"] / totals["requests"])),
        osl=max(1, round(totals["output_tokens"] / max(1, totals["finished"]))),
    )
    (chip, *others) = {part.platform.name for part in serving.parts}
    near = nearest(
        read_errors(), chip=chip, kind="mixture" if busiest.spec.experts else "dense",
        precision=precision_of(busiest.spec), tp=run.get("ranks", 1), load=load,
    )  # fmt: skip
    if others or not near.runs:
        reason = "unlike chips" if others else f"{busiest.name}, {load.isl} + {load.osl} tokens"
        return f"{UNKNOWN} ({reason})"
    figures = ("ttft", "tpot") if len(serving.deployments) == 1 else ("tpot",)
    text = "; ".join(f"{name.upper()}: {near.says(name)}" for name in figures)
    return f"{text} ({near.of}; lengths and chips within a factor of {FACTOR:g})"


def _unlike(serving: ServingSetup, part: FleetPart) -> str:
    if serving.system.layout is not None:
        return "a layout over several devices"
    if weights_in(serving.system.load) != "hbm":
        return "weights outside HBM"
    return "slices" if any(s.is_cut for s in slices(part.platform, part.mig)) else ""


def borrowed(serving: ServingSetup) -> Iterator[str]:
    """Yield lines on other chips' numbers in a fleet's place."""
    chips = {part.platform.name: (part.platform, part.constants) for part in serving.parts}
    layout = serving.system.layout
    gpus = () if layout is None else layout.gpus
    for platform in (one for _, one in gpus if one.name in platforms()):  # not slices
        chip_constants = load_constants(calibration_for(platform.name))
        chips.setdefault(platform.name, (platform, chip_constants))
    for platform, constants in chips.values():
        yield from _borrowed(platform, constants)


def _borrowed(platform: Platform, constants: Constants) -> Iterator[str]:
    parts_of = {chip: ", ".join(parts) for chip, parts in constants.carried.items()}
    if parts_of:
        middle = parts_of.pop("datasheet", "")
        sources = [f"{text} of {chip}" for chip, text in parts_of.items()]
        sources += [f"{middle} of the median of measured chips"] * bool(middle)
        yield f"constants for {platform.name} from other chips: {'; '.join(sources)}"
    if platform.ranks is not None and (chip := collectives_chip(platform)) != platform.name:
        yield f"all-reduces for {platform.name} from another chip: {chip}"
