"""Fit the constants marked `fitted` to full-GPU numbers.

    c2c calibrate claims                # print stored and fitted values
    c2c calibrate claims --write        # and store changes

Published inputs are under `inputs` in `conf/calibration/<name>.yaml`, by claim id.
"""

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from c2c.atomic import write_text
from c2c.cost.calibration_file import yaml_float
from c2c.cost.constants import Constants, calibration_inputs, calibration_path, load_constants
from c2c.cost.gemm_time import gemm_time
from c2c.errors import DataError
from c2c.hardware import Slice, link_gbps, load_mig, load_platform, slices
from c2c.models import load_spec, weight_bytes

__all__ = ["KernelFit", "fit", "fit_kernel", "main"]

SYM_LATENCY = "c2cserve.fig4a.full_gpu.sym_latency"
ASYM_LATENCY = "c2cserve.fig4a.full_gpu.asym_latency"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFit:
    """Result of the fit; `loss` sums squared log ratios."""

    link_efficiency: float
    reduce_gbps_per_sm: float
    loss: float


def fit_kernel(
    constants: Constants,
    slice_: Slice,
    link_capacity_gbps: float,
    *,
    shape: tuple[int, int, int],
    sym_s: float,
    asym_s: float,
) -> KernelFit:
    """Fit link efficiency and reduction rate to a GEMM's latency under both dataflows."""
    from scipy.optimize import least_squares

    m, n, k = shape

    def misses(logs: Any, capacity_gbps: float = math.inf) -> Any:
        link, reduce = map(float, np.exp(logs))
        rates = constants.having({"link_efficiency": link, "reduce_gbps_per_sm": reduce})
        predicted = gemm_time(
            m, n, k, np.array([1.0, 0.0]), slice_=slice_, constants=rates, link_gbps=capacity_gbps,
        ).time_s  # fmt: skip
        return np.log(predicted / np.array([sym_s, asym_s]))

    start = np.log([constants.link_efficiency, constants.reduce_gbps_per_sm])
    logs = least_squares(misses, start, xtol=1e-15, ftol=1e-15, gtol=1e-15).x
    rest = float(np.sum(misses(logs, link_capacity_gbps) ** 2))
    link_efficiency, reduce_gbps = map(float, np.exp(logs))
    return KernelFit(link_efficiency=link_efficiency, reduce_gbps_per_sm=reduce_gbps, loss=rest)


def fit(name: str = "gh200") -> dict[str, float]:
    """Return a calibration's fitted constants from its inputs.

    Raises:
      DataError: the fit does not meet its two targets.
    """
    stored = load_constants(name)
    inputs = calibration_inputs(name)
    claims = inputs.claims_s
    platform = load_platform(inputs.platform)
    full_gpu = slices(platform, load_mig(inputs.mig))[0]
    capacity = link_gbps(platform.link, inputs.link)
    kernel = fit_kernel(
        stored,
        full_gpu,
        capacity,
        shape=inputs.shape,
        sym_s=claims[SYM_LATENCY],
        asym_s=claims[ASYM_LATENCY],
    )
    if not kernel.loss < 1e-12:
        raise DataError(
            str(calibration_path(name)),
            f"no constants reproduce both latencies (loss {kernel.loss:.3g})",
            "Another resource is the bottleneck; check the assumed efficiencies.",
        )

    def copy_s(model: str) -> float:
        return float(weight_bytes(load_spec(model))) / (capacity * 1e9)

    return {
        "link_efficiency": kernel.link_efficiency,
        "reduce_gbps_per_sm": kernel.reduce_gbps_per_sm,
        "switch_dense_s": claims["c2cserve.fig11.dense.c2cserve"],
        "switch_moe_s": claims["c2cserve.fig11.moe.c2cserve"],
        "engine_init_s": claims["medusa.fig8a.total"] - claims["medusa.fig8a.weights"],
        "sllm_init_dense_s": claims["c2cserve.fig11.dense.sllm"] - copy_s(inputs.dense_model),
        "sllm_init_moe_s": claims["c2cserve.fig11.moe.sllm"] - copy_s(inputs.moe_model),
    }


def store(name: str, values: Mapping[str, float]) -> None:
    """Replace these constants in the calibration file, keeping comments."""
    path = calibration_path(name)
    text = path.read_text(encoding="utf-8")
    for constant, value in values.items():
        written = yaml_float(value)
        text, count = re.subn(rf"(?m)^(  {constant}:\n    value: ).*$", rf"\g<1>{written}", text)
        if count != 1:
            raise DataError(str(path), f"expected one value of {constant}, found {count}")
    write_text(path, text)


def main(arguments: Sequence[str]) -> None:
    """Fit and print; with `--write` store."""
    parser = argparse.ArgumentParser(prog="c2c calibrate claims", description=__doc__)
    parser.add_argument("name", nargs="?", default="gh200")
    parser.add_argument("--write", action="store_true", help="store the fitted values")
    args = parser.parse_args(arguments)
    stored = load_constants(args.name)
    fitted = fit(args.name)
    for constant in (f.name for f in fields(Constants) if f.name in fitted):
        old, new = getattr(stored, constant), fitted[constant]
        print(f"{constant:20s} stored {old:<14.9g} fitted {new:<14.9g} ratio {new / old:.6f}")
    if args.write:
        store(args.name, fitted)
        print(f"wrote {calibration_path(args.name).name}")
