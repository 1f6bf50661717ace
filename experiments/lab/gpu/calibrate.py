"""Turn measured rows into constants of the cost model, and rates for the choice of `hybrid_gemm`.

    c2c calibrate gpu experiments/results/nvidia-h200/rows.jsonl [--write]

Prints measured constants beside those of `conf/calibration/h200_pcie5.yaml`, and the device's
rates. --write stores both, the rates among the kernels' tuned results; other devices give rates
alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from c2c.cost.calibration_file import store_constants
from c2c.cost.constants import Constants, Source, load_constants
from c2c.errors import DataError
from c2c.hardware import load_platform
from experiments.lab.gpu import verdicts
from experiments.lab.gpu.cases import Row
from experiments.lab.gpu.rows import Rows
from pallas_kernels import tuned_results

NAME: Final = "h200_pcie5"
DEVICE: Final = "NVIDIA H200"  # the device that `NAME` calibrates, as the driver calls it


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A constant's value and its origin."""

    value: float
    why: str


def rates(rows: Sequence[Row]) -> dict[str, float]:
    """Return the measured rates of `pallas_kernels.gemm.Machine`, by field."""
    real = [row for row in rows if not row.get("dry_run")]
    gbps_of = {
        "link_gbps": verdicts.sm_rate(real),
        "copy_gbps": verdicts.copy_rate(real),
        "hbm_gbps": verdicts.bound(real, "hbm", "gbps"),
        "bf16_tflops": verdicts.bound(real, "tensor_cores", "tflops"),
    }
    return {name: value for name, value in gbps_of.items() if value is not None}


def constants(rows: Sequence[Row]) -> dict[str, Measured]:
    """Return the constants determined by an H200's rows over PCIe."""
    real = [row for row in rows if not row.get("dry_run")]
    platform, result = load_platform(NAME), {}
    if (tflops := verdicts.bound(real, "tensor_cores", "tflops")) is not None:
        result["mma_efficiency"] = Measured(
            value=min(1.0, tflops / platform.gpu.bf16_tflops),
            why="XLA's 8192^3 bf16 products over the dense peak.",
        )
    if (gbps := verdicts.bound(real, "hbm", "gbps")) is not None:
        result["hbm_efficiency"] = Measured(
            value=min(1.0, gbps / platform.gpu.hbm_gbps),
            why="Reading and writing 0.5 GiB, both counted, over the datasheet's rate.",
        )
    if best := verdicts.decode_rates(real, verdicts.EITHER):
        rate = statistics.median(r["weight_bytes"] / r["time_s"] / 1e9 for r in best.values())
        result["link_efficiency"] = Measured(
            value=min(1.0, rate / platform.link.datasheet_gbps),
            why=f"{rate:.1f} GB/s of W by the faster reader, median of M to 64, over the link's.",
        )
    prompts = [
        row["flops"] / row["time_s"] / 1e12
        for row in real
        if row["stage"] == "attention" and row["status"] == "ok" and row["what"] == "prefill"
    ]
    if prompts:
        result["prefill_efficiency"] = Measured(
            value=min(1.0, statistics.median(prompts) / platform.gpu.bf16_tflops),
            why="prefill_attention of 4096 tokens over the dense peak.",
        )
    return result


def updated(
    stored: Constants, measurements: Mapping[str, Measured], where: str
) -> tuple[dict[str, float], dict[str, Source]]:
    """Return values and sources with measured ones, `where` in the reason."""
    names = [f.name for f in fields(Constants) if f.name not in ("name", "host", "sources")]
    values = {name: float(getattr(stored, name)) for name in names}
    sources = dict(stored.sources)
    for name, one in measurements.items():
        values[name] = float(f"{one.value:.6g}")
        sources[name] = Source(kind="measured", why=f"{one.why} {where}")
    return values, sources


def main(arguments: Sequence[str] | None = None) -> int:
    """Print measured constants and rates; store them with --write."""
    parser = argparse.ArgumentParser(
        prog="c2c calibrate gpu", description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )  # fmt: skip
    parser.add_argument("rows", type=Path, help="rows of make gpu")
    parser.add_argument("--write", action="store_true", help="store constants and rates")
    options = parser.parse_args(arguments)
    if not options.rows.is_file():
        raise DataError(str(options.rows), "expected a file of rows of make gpu")
    rows = Rows(options.rows)
    devices = sorted({str(run.get("device")) for run in rows.runs})
    if len(devices) != 1:
        raise DataError(str(options.rows), f"expected rows of one device, not of {devices}")
    measured = rates(rows.all)
    updates = constants(rows.all) if devices == [DEVICE] else {}
    if not measured:
        print("No rate was measured: nothing is written.", file=sys.stderr)
        return 1
    date = str(rows.runs[-1].get("date", ""))[:10]
    for name, value in measured.items():
        print(f"{name:20s} {value:10.1f}")
    stored = load_constants(NAME)
    for name, one in updates.items():
        old = getattr(stored, name)
        print(f"{name:20s} stored {old:<10.4g} measured {one.value:<10.4g} {one.why}")
    if options.write:
        if updates:
            store_constants(NAME, *updated(stored, updates, f"({devices[0]}, {date})"))
        print(f"wrote {_store_rates(devices[0], measured, date)}")
    return 0


def _store_rates(device: str, measured: Mapping[str, float], date: str) -> Path:
    path = tuned_results.folders()[0] / tuned_results.file_name(device)
    old = tuned_results.read(path) if path.exists() else tuned_results.Tuned(device=device)
    machine: dict[str, Any] = {**old.machine, **measured, "source": f"make gpu, {date}"}
    path.parent.mkdir(parents=True, exist_ok=True)
    tuned_results.write(path, replace(old, machine=machine))
    return path


if __name__ == "__main__":
    sys.exit(main())
