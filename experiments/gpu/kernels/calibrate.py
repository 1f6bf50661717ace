"""Turn measured rows into constants of the cost model.

    c2c calibrate gpu experiments/results/nvidia-h200 [--write]

Prints every constant of `conf/calibration/h200_pcie5.yaml` beside its measured value. --write
stores the measured values, with device and date in their source. Constants that no row measures
keep their value and source. Rows of another device are refused, since efficiencies are shares of
this device's peaks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from c2c.cost.calibration_file import store_constants
from c2c.cost.constants import Constants, Source, load_constants
from c2c.hardware import load_platform, slices
from experiments.gpu import Row
from experiments.gpu.kernels import analysis
from experiments.gpu.sections import SECTIONS
from experiments.gpu.store import Store

NAME, PLATFORM, MIG = "h200_pcie5", "h200_pcie5", "1x141gb"
DEVICE = "NVIDIA H200"  # the device that `NAME` calibrates, as the driver calls it


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A constant's value and how it was obtained."""

    value: float
    why: str


def measured(rows: Mapping[str, Sequence[Row]]) -> dict[str, Measured]:
    """Return the constants that these rows determine, by name.

    Args:
      rows: rows of one device, by section; those of dry runs do not count.
    """
    real = {name: [r for r in of if not r.get("dry_run")] for name, of in rows.items()}
    gpu = load_platform(PLATFORM).gpu
    found: dict[str, Measured] = {}
    kernels = [r for r in real.get("kernels", []) if "w_in" not in r]
    bounds = analysis.typical(analysis.bounds_by_run(kernels).values())
    if bounds is not None:
        found["mma_efficiency"] = Measured(
            value=min(1.0, bounds.tflops / gpu.bf16_tflops),
            why="XLA's 8192^3 bf16 products in a chain, median over runs, over the dense peak.",
        )
        found["hbm_efficiency"] = Measured(
            value=min(1.0, bounds.hbm_gbps / gpu.hbm_gbps),
            why="Reading and writing 1 GiB, both counted, over the datasheet's rate.",
        )
    grid = analysis.with_limits(kernels)
    if link := _link(grid):
        found["link_efficiency"] = link
    if bounds is not None and (reduce := _reduce(grid, bounds)):
        found["reduce_gbps_per_sm"] = reduce
    gaps = [r["kernel_s"] for r in real.get("facts", []) if "kernel_s" in r]
    if gaps:
        found["launch_s"] = Measured(
            value=statistics.median(gaps),
            why="One of a chain of dependent small kernels in one program, its own work included.",
        )
    prompts = [
        r["flops"] / r["time_s"] / 1e12
        for r in real.get("attention", [])
        if r.get("what") == "prefill" and r["status"] == "ok" and r["length"] >= 2048
    ]
    if prompts:
        found["prefill_efficiency"] = Measured(
            value=min(1.0, statistics.median(prompts) / gpu.bf16_tflops),
            why=f"prefill_attention from 2048 tokens up, median of {len(prompts)}, over the peak.",
        )
    return found


def _link(grid: Sequence[Row]) -> Measured | None:
    """Return the share of the slice's cap that the kernel draws if the link limits it."""
    cap = slices(load_platform(PLATFORM), MIG)[0].link_cap_gbps
    best: dict[tuple[int, int, int], float] = {}
    for r in grid:
        # large enough that start and end of a launch do not matter
        streams = r["m"] <= 64 and r["weight_bytes"] >= 64e6
        if r["what"] == "hybrid" and r["sm_limit"] == analysis.WHOLE and streams:
            key = r["k"], r["n"], r["m"]
            best[key] = max(best.get(key, 0.0), r["link_gbps"])
    if not best:
        return None
    rate = statistics.median(best.values())
    return Measured(
        value=min(1.0, rate / cap),
        why=(
            f"hybrid_gemm draws {rate:.1f} GB/s (median of {len(best)} GEMMs with M <= 64, each at "
            f"its best alpha), over the slice's cap of {cap:.0f} GB/s."
        ),
    )


def _reduce(grid: Sequence[Row], bounds: analysis.Bounds) -> Measured | None:
    """Return the rest of AsymGEMM's time after its tensor-core time, as a rate of an SM.

    Only GEMMs count whose time is well above that of the weights over the link.
    """
    issue_s = load_constants(NAME).asym_issue_s
    rates = []
    for r in grid:
        if r["what"] != "hybrid" or r["alpha"] != 0 or r["sm_limit"] != analysis.WHOLE:
            continue
        if r["time_s"] < 1.3 * r["weight_bytes"] / (bounds.link_of(analysis.WHOLE) * 1e9):
            continue
        slices_of_k, steps = -(-r["k"] // r["kc"]), -(-r["m"] // r["tm"]) * -(-r["n"] // r["tn"])
        work_s = r["time_s"] * analysis.WHOLE
        math_s = r["flops"] / (bounds.tflops * 1e12 / analysis.WHOLE)
        left_s = work_s - math_s - steps * slices_of_k * issue_s
        if left_s > 0.02 * work_s:
            rates.append(2.0 * r["m"] * r["n"] * slices_of_k / left_s / 1e9)
    if not rates:
        return None
    return Measured(
        value=statistics.median(rates),
        why=(
            f"Rest of AsymGEMM's time after its tensor-core time, median of {len(rates)} "
            "GEMMs whose time is well above that of the link."
        ),
    )


def updated(
    constants: Constants, found: Mapping[str, Measured], where: str
) -> tuple[dict[str, float], dict[str, Source]]:
    """Return values and sources with measured ones replaced; `where` is added to the reason."""
    names = [f.name for f in fields(Constants) if f.name not in ("name", "sources")]
    values = {name: float(getattr(constants, name)) for name in names}
    sources = dict(constants.sources)
    for name, one in found.items():
        values[name] = float(f"{one.value:.6g}")
        sources[name] = Source(kind="measured", why=f"{one.why} {where}")
    return values, sources


def main(arguments: Sequence[str] | None = None) -> int:
    """Print stored and measured constants; store the measured ones with --write."""
    parser = argparse.ArgumentParser(
        prog="c2c calibrate gpu",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("results", type=Path, help="folder with a device's results")
    parser.add_argument("--write", action="store_true", help="store the measured constants")
    options = parser.parse_args(arguments)
    stores = {name: Store(options.results / name) for name in SECTIONS}
    found = measured({name: store.rows for name, store in stores.items()})
    if not found:
        print("No constant was measured: the file is unchanged.", file=sys.stderr)
        return 1
    runs: list[Any] = [facts for store in stores.values() for facts in store.runs.values()]
    devices = sorted({str(run.get("device", "a device without a name")) for run in runs})
    if devices != [DEVICE]:
        of = ", ".join(devices) or "unnamed devices"
        print(f"error: {options.results} has rows of {of}: expected rows of {DEVICE} alone",
              file=sys.stderr)  # fmt: skip
        return 2
    constants = load_constants(NAME)
    for name in (f.name for f in fields(Constants) if f.name not in ("name", "sources")):
        old = f"{name:22s} stored {getattr(constants, name):<12.6g}"
        if name in found:
            print(f"{old} measured {found[name].value:<12.6g} {found[name].why}")
        else:
            print(f"{old} {constants.sources[name].kind}, not measured by these rows")
    if options.write:
        last = max(str(run["started_at"]) for run in runs)[:10]
        where = f"({options.results.name}, {last})"
        store_constants(NAME, *updated(constants, found, where))
        print(f"wrote {NAME}.yaml")
    return 0


if __name__ == "__main__":
    sys.exit(main())
