"""Fit of chips' constants to half their rows."""

from __future__ import annotations

import math
import re
import statistics
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from c2c.atomic import write_text
from c2c.cost import Constants, Engine, Source, calibration_names, load_constants
from c2c.cost.calibration_file import as_yaml, store_constants, yaml_float
from c2c.cost.constants import GENERIC
from c2c.errors import DataError, SettingError
from c2c.hardware import bases, conf_dir
from experiments.measured.chips import FITTED, Chip, chip_of, shipped, whole
from experiments.measured.engines import EngineRun, engine_of, run_figures, runs_of
from experiments.measured.errors import Error, error_of
from experiments.measured.ops import Op, is_held_out, op_rows
from experiments.measured.rows import Rows
from experiments.plain_engine import Figures

__all__ = [
    "GROUPS",
    "KERNEL_CHIPS",
    "Group",
    "fit_chip",
    "fit_engines",
    "fit_group",
    "fit_jointly",
    "fit_kernels",
    "fit_own",
    "from_others",
    "store_engines",
    "store_fits",
    "store_kernels",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Constants fitted together.

    `typical`: priors: value and deviation of the logarithm (of an efficiency: logit).
    """

    op: str
    typical: Mapping[str, tuple[float, float]]


# Round values of public chips: main loops at 0.8 of the peak, launches of 3 to 4 microseconds,
# memory just fast enough for tiles of 128 x 128 (64 operations a byte).
GROUPS: Final = (
    Group(op="gemm", typical={
        "gemm_mma_efficiency": (0.80, 1.0), "gemm_hbm_efficiency": (0.87, 1.0),
        "gemm_launch_s": (3.5e-6, 0.3), "gemm_intensity": (64.0, 0.3), "gemm_tile_s": (0.7e-6, 0.5),
        "gemm_throttle": (0.1, 1.5),
    }),
    Group(op="prefill attention", typical={
        "prefill_efficiency": (0.57, 1.0), "prefill_floor_s": (10e-6, 0.3),
        "prefill_head_s": (1e-6, 1.0), "prefill_token_s": (30e-9, 1.0),
        "prefill_kv_weight": (1.5, 0.5), "prefill_spill": (0.6, 1.0),
    }),
    Group(op="decode attention", typical={
        "decode_hbm_efficiency": (0.82, 1.0), "decode_floor_s": (10e-6, 0.5),
        "decode_head_s": (2.7e-6, 1.0), "l2_gain": (2.0, 0.7),
    }),
    Group(op="moe", typical={
        "expert_mma_efficiency": (0.5, 1.0), "expert_hbm_efficiency": (0.82, 1.0),
        "expert_intensity": (55.0, 1.0), "expert_tile_s": (1e-6, 1.0),
        "expert_floor_s": (33e-6, 1.0),
    }),
    Group(op="layer elementwise", typical={
        "elementwise_efficiency": (0.6, 1.0), "elementwise_s": (5e-6, 1.0),
    }),
)  # fmt: skip
KERNEL_CHIPS: Final = ("h100_sxm", "b200", "l40s", "rtx_pro_6000")
# Loss: mean absolute error of the logarithm, smoothed near 0, plus a pull to `typical`, so that a
# constant is plausible if the rows hardly determine it.
ROUNDING: Final = 0.03  # relative errors below it hardly count
PULL: Final = 0.003
FARTHEST: Final = 8.0  # standard deviations of a prior that are searched
# Rows of narrow GEMMs include the quantisation of X, which engines fuse into the kernel before: few
# rows of X take a tenth longer than in engines. So launches, HBM and the feed of a tile stay as in
# the calibration, and what many rows of X take is fitted.
NARROW_GEMM: Final = Group(op="gemm", typical={
    "gemm_mma_efficiency": (0.6, 1.0), "gemm_tile_s": (0.7e-6, 0.5), "gemm_throttle": (0.1, 1.5),
})  # fmt: skip
# Milliseconds of a step and microseconds of a layer from which the search begins.
STARTS: Final = ((0.3, 5.0), (1.0, 1.0), (0.1, 20.0), (2.0, 10.0))
MOST: Final = (3.0, 22.0)  # 22 us: four kernels that nothing fuses, as Vidur measured them
FEW_CLIENTS: Final = 8  # clients at most whose TTFT the seconds before a first step are fitted to
ENTRY: Final = r"(?m)^{}:\n(?:  .*\n)+"
UNBOUND_WEIGHT: Final = 0.3  # weight of rows without an error bound


def fit_group(
    group: Group,
    op: Op,
    samples: Sequence[tuple[Rows, Chip]],
    unbound: float = UNBOUND_WEIGHT,
) -> dict[str, float]:
    """Return a group's constants, fitted to all chips' samples."""
    from scipy.optimize import minimize

    names = list(group.typical)
    centre = np.array([_free(n, group.typical[n][0]) for n in names])
    spread = np.array([group.typical[n][1] for n in names])
    bounds = [op.is_bound(rows) for rows, _ in samples]
    weights = [np.where(b, 1.0, unbound) if b.any() else np.ones(len(b)) for b in bounds]

    def values(steps: np.ndarray) -> dict[str, float]:
        free = centre + spread * steps
        return {n: float(_bounded(n, v)) for n, v in zip(names, free, strict=True)}

    def loss(steps: np.ndarray) -> float:
        tried = values(steps)
        missed = [
            np.average(np.hypot(np.log(op.predict(rows, chip.trying(tried)) / rows[op.measured]),
                                ROUNDING), weights=weight)
            for (rows, chip), weight in zip(samples, weights, strict=True)
        ]  # fmt: skip
        return float(np.mean(missed) + PULL * np.mean(steps**2))

    optimum = minimize(loss, np.zeros(len(names)), method="L-BFGS-B", jac="3-point",
                     bounds=[(-FARTHEST, FARTHEST)] * len(names))  # fmt: skip
    return {n: float(f"{v:.6g}") for n, v in values(optimum.x).items()}


def _free(name: str, value: float) -> float:
    return math.log(value / (1.0 - value)) if name.endswith("efficiency") else math.log(value)


def _bounded(name: str, free: float) -> Any:
    return 1.0 / (1.0 + np.exp(-free)) if name.endswith("efficiency") else np.exp(free)


def _halves(op: Op, rows: Rows) -> tuple[Rows, Rows]:
    holdout = np.array([is_held_out(key) for key in rows.keys(op.shape)])
    return rows.take(~holdout), rows.take(holdout)


def fit_chip(
    platform: str, tables: Mapping[str, Rows], base: Constants | None = None,
    names: Collection[str] | None = None,
) -> dict[str, tuple[float, str]]:  # fmt: skip
    """Return a chip's constants by its rows, with held-out errors."""
    chip = whole(platform, base)
    result: dict[str, tuple[float, str]] = {}
    ours = {
        op.name: (op, rows) for op, system, rows in op_rows(tables) if chip_of(system) == platform
    }
    for group in GROUPS:
        if group.op not in ours or not (names is None or {*group.typical} & {*names}):
            continue
        op, rows = ours[group.op]
        fitted, holdout = _halves(op, rows)
        if len(fitted) < len(group.typical):
            allowed = f"at least {len(group.typical)} in the fitted half of {op.name}'s shapes"
            raise SettingError(f"{op.file}.csv: rows of {platform}", len(fitted), allowed)
        constants = fit_group(group, op, [(fitted, chip)])
        chip = replace(chip, constants=chip.constants.having(constants))
        bound = holdout.take(op.is_bound(holdout)) if op.is_bound(holdout).any() else holdout
        error = error_of(op.predict(bound, chip), bound[op.measured])
        result |= {name: (value, _said(error)) for name, value in constants.items()}
    return result


def fit_kernels(platform: str, tables: Mapping[str, Rows]) -> dict[str, dict[str, Any]]:
    """Return a chip's sections of `conf/kernels`, fitted to half."""
    chip, result = whole(platform), dict[str, dict[str, Any]]()
    ours = [(op, rows) for op, system, rows in op_rows(tables)
            if op.kernel and chip_of(system) == platform]  # fmt: skip
    for op, rows in sorted(ours, key=lambda pair: -pair[0].operand_bytes):
        group = next(g for g in GROUPS if g.op == op.name.split()[0])
        if group.op == "gemm":
            group = NARROW_GEMM
        fitted, holdout = _halves(op, rows)
        constants = fit_group(group, op, [(fitted, chip)], 0.1 * UNBOUND_WEIGHT)
        error = error_of(op.predict(holdout, chip.trying(constants)), holdout[op.measured])
        entry = result.setdefault(op.kernel, {"source": [], "constants": {}})
        if entry.get("operand_bytes", op.operand_bytes) != op.operand_bytes:
            entry.update(source=[], constants={})
        entry["operand_bytes"] = op.operand_bytes
        entry["source"].append(f"{op.name}: {_said(error)}")
        entry["constants"] |= constants
    return result


def store_kernels(tables: Mapping[str, Rows], chips: Sequence[str]) -> list[str]:
    """Fit and store `conf/kernels`; return the log."""
    notes = []
    for platform in chips:
        sections = fit_kernels(platform, tables)
        lines = [
            f"# Kernels over narrow weights on {platform}, fitted by `c2c bench measured fit=true`",
            "# to half of the shapes of gemm_narrow.csv and moe_narrow.csv; errors: the others.",
        ]
        for name, entry in sections.items():
            source = "; ".join(entry["source"])
            lines += [f"{name}:", f"  operand_bytes: {entry['operand_bytes']:g}", "  source: >-"]
            lines += [_indented(source), "  constants:"]
            lines += [f"    {n}: {yaml_float(v)}" for n, v in entry["constants"].items()]
            notes.append(f"{platform}.{name}: {source}")
        write_text(conf_dir() / "kernels" / f"{platform}.yaml", "\n".join(lines) + "\n")
    return notes


def from_others(platform: str | None, constants: Constants) -> Constants:
    """Return an unmeasured chip's constants: medians of fitted chips."""
    others = [load_constants(name) for name in FITTED if name != platform]
    names = [n for g in GROUPS for n in g.typical]
    values = {}
    for name in names:
        numbers = [getattr(c, name) for c in others if c.sources[name].kind == "fitted"]
        if numbers:
            middle = math.exp(statistics.median(map(math.log, numbers)))
            values[name] = float(f"{middle:.6g}")
    return constants.having(values)


def fit_jointly(group: Group, tables: Mapping[str, Rows]) -> dict[str, dict[str, float]]:
    """Return each chip's constants as if unmeasured."""
    samples = {
        platform: (op, (_halves(op, rows)[0], whole(platform)))
        for op, system, rows in op_rows(tables)
        if op.name == group.op and (platform := chip_of(system)) in FITTED
    }
    if len(samples) < 3:
        return {}
    ((op, _), *_) = samples.values()
    return {
        platform: fit_group(group, op, [sample for name, (_, sample) in samples.items()
                                        if name != platform])
        for platform in samples
    }  # fmt: skip


def store_fits(tables: Mapping[str, Rows]) -> list[str]:
    """Fit and store chips with rows, then others."""
    lines = []
    systems = {chip_of(s) for _, s, _ in op_rows(tables)}
    for platform in sorted(s for s in systems if s):
        stored = load_constants(platform)
        marked = {n for n, s in stored.sources.items() if s.kind == "fitted" and s.rows}
        fits = fit_chip(platform, tables, names=marked)
        updates = {n: v for n, v in fits.items() if n in marked}
        lines += [
            f"{platform}.{n}: {getattr(stored, n):.6g} -> {v:.6g} (held out: {error})"
            for n, (v, error) in updates.items()
        ]
        _store(platform, stored, updates)
    generic = load_constants(GENERIC)
    means = from_others(None, generic)
    marked = {n for n, s in generic.sources.items() if s.kind == "fitted"}
    _store(GENERIC, generic, {n: (getattr(means, n), generic.sources[n].held_out) for n in marked})
    return lines


def fit_own(folder: Path, tables: Mapping[str, Rows]) -> list[str]:
    """Fit a user's chips, and write calibrations; return the log."""
    names = {path.stem for path in (folder / "hardware").glob("*.yaml")} - shipped()
    chips = sorted({str(system) for _, system, _ in op_rows(tables)})
    if not chips or not set(chips) <= names:
        other = next((c for c in chips if c not in names), "")
        raise SettingError(
            "system", other, f"a chip of {folder}/hardware ({', '.join(sorted(names)) or 'none'})",
            "A file with defaults: [h100_sxm, _self_] makes one of a chip of the project.",
        )  # fmt: skip
    lines = []
    for chip in chips:
        ancestors = (base for base in bases("hardware", chip) if base in calibration_names())
        base = load_constants(next(ancestors, GENERIC))
        fits = fit_chip(chip, tables, base)
        sources = {
            name: Source(kind="carried", why=f"No row of {chip} determines it.", claims=(),
                         chip=source.chip or base.name)
            for name, source in base.sources.items()
        } | {
            name: Source(kind="fitted", why=f"Own rows of {chip}.", claims=(),
                         rows=", ".join(f"{t}.csv" for t in tables), held_out=error)
            for name, (_, error) in fits.items()
        }  # fmt: skip
        path = folder / "calibration" / f"{chip}.yaml"
        path.parent.mkdir(exist_ok=True)
        head = f"# {chip}: `c2c bench measured data={folder} fit=true`\n\n"
        write_text(path, head + as_yaml({n: v for n, (v, _) in fits.items()}, sources))
        lines += [f"{chip}.{n}: {v:.6g} (held out: {error})" for n, (v, error) in fits.items()]
        lines.append(f"written: {path}")
    return lines


def fit_engines(rows: Rows) -> dict[str, tuple[dict[str, float], str]]:
    """Fit engines' seconds of a step, a layer and before the first step."""
    from scipy.optimize import minimize

    runs: dict[str, list[tuple[EngineRun, Figures, Engine]]] = {}
    for run, _ in runs_of(rows):
        if run is None or run.load == "queued":
            continue
        engine = engine_of(run)
        figures = run_figures(run, engine)
        if figures is not None and np.isfinite(figures.tpot_s):
            name = f"{run.backend}-{engine.version}"
            runs.setdefault(name, []).append((run, figures, engine))
    result = {}
    for name, ours in runs.items():
        layers = np.array([run.spec.layers for run, _, _ in ours], float)
        holdout = np.array([run.held_out for run, _, _ in ours])
        engine = ours[0][2]
        rest_s = np.array([f.tpot_s for _, f, _ in ours])
        rest_s = rest_s - engine.step_overhead_s - layers * engine.layer_s
        measured_s = np.array([run.measured.tpot_s for run, _, _ in ours])

        def tpot_s(
            free: np.ndarray, rest_s: np.ndarray = rest_s, layers: np.ndarray = layers
        ) -> Any:
            step_s, layer_s = np.clip(np.abs(free), 0.0, MOST)
            return np.maximum(rest_s + 1e-3 * step_s + 1e-6 * layers * layer_s, 1e-5)

        def loss(
            free: np.ndarray, holdout: np.ndarray = holdout, measured_s: np.ndarray = measured_s
        ) -> float:
            return float(np.mean(np.hypot(np.log(tpot_s(free) / measured_s)[~holdout], ROUNDING)))

        best = min((minimize(loss, start, method="Nelder-Mead") for start in STARTS),
                   key=lambda tried: tried.fun)  # fmt: skip
        waits = [
            run.measured.ttft_s - figures.ttft_s + engine.request_s
            for run, figures, _ in ours if not run.held_out and run.concurrency <= FEW_CLIENTS
        ]  # fmt: skip
        error = error_of(tpot_s(best.x)[holdout], measured_s[holdout])
        step_s, layer_s = np.clip(np.abs(best.x), 0.0, MOST)
        result[name] = (
            {
                "step_overhead_s": float(f"{1e-3 * step_s:.3g}"),
                "layer_s": float(f"{1e-6 * layer_s:.3g}"),
                "request_s": float(f"{max(0.0, float(np.median(waits))):.3g}") if waits else 0.0,
            },
            f"fitted to {int((~holdout).sum())} of its {len(ours)} runs in engine_runs.csv; "
            f"TPOT of the others: {_said(error)}",
        )
    return result


def store_engines(rows: Rows) -> list[str]:
    """Fit and store each engine's parts; return the log."""
    lines = []
    for engine, (values, source) in fit_engines(rows).items():
        path = conf_dir() / "engines" / f"{engine}.yaml"
        text = path.read_text(encoding="utf-8")
        for key, value in values.items():
            entry = f"{key}:\n  value: {yaml_float(value)}\n  source: >-\n{_indented(source)}\n"
            text, count = re.subn(ENTRY.format(key), entry, text)
            if count != 1:
                raise DataError(str(path), f"expected one {key}, found {count}")
        write_text(path, text)
        lines.append(f"{engine}: {values} ({source})")
    return lines


def _said(error: Error | None) -> str:
    return "no rows" if error is None else error.in_words


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in textwrap.wrap(text, 96))


def _store(name: str, stored: Constants, fits: Mapping[str, tuple[float, str]]) -> None:
    values = {n: fits[n][0] if n in fits else getattr(stored, n) for n in stored.sources}
    sources: dict[str, Source] = {
        n: replace(s, held_out=fits[n][1]) if n in fits else s for n, s in stored.sources.items()
    }
    store_constants(name, values, sources)
