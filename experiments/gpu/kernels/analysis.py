"""Analysis of the benchmark's rows: limits, fractions reached, best choices.

Works on rows alone (see `docs/gpu/results.md` for their columns), so it runs anywhere.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.gpu import Row

WHOLE = 132
"""SMs of the whole GPU in `sm_limit`."""

Cell = tuple[int, int, int, int]
"""(K, N, M, SMs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Rates of link, memory and tensor cores alone, measured in the run of the compared rows.

    `link_gbps` is the rate of the SMs' own reads by number of SMs; `dma_gbps` that of copies.
    """

    link_gbps: Mapping[int, float]
    dma_gbps: float
    hbm_gbps: float
    tflops: float

    def link_of(self, sms: int) -> float:
        """Return the best rate in GB/s at which work of `sms` SMs can get data over the link."""
        own = self.link_gbps.get(sms)
        if sms == WHOLE or own is None:
            return max(self.dma_gbps, own or 0.0)
        return own

    def tflops_of(self, sms: int) -> float:
        """Return the matrix rate of `sms` SMs in TFLOP/s, in proportion to the whole GPU."""
        return self.tflops * sms / WHOLE

    def seconds(
        self, over_link: float, in_memory: float, flops: float, sms: int = WHOLE
    ) -> dict[str, float]:
        """Return the seconds of link bytes, device memory bytes and operations, each alone."""
        return {
            "link": over_link / (self.link_of(sms) * 1e9),
            "hbm": in_memory / (self.hbm_gbps * 1e9),
            "flops": flops / (self.tflops_of(sms) * 1e12),
        }


def limited(row: Row, parts: Mapping[str, float]) -> Row:
    """Return a row's limit, which is its slowest part, and the share of the limit it reaches."""
    binds = max(parts, key=lambda name: parts[name])
    return {"limit_s": parts[binds], "binds": binds, "fraction": parts[binds] / row["time_s"]}


def bounds_by_run(rows: Iterable[Row]) -> dict[str, Bounds]:
    """Return the bounds of every run that measured all of them."""
    found: dict[str, dict[Any, float]] = defaultdict(dict)
    for row in rows:
        if row.get("what") == "bound" and row["status"] == "ok":
            key = row["sm_limit"] if row["of"] == "link_sm" else row["of"]
            found[row["run"]][key] = row["tflops" if row["of"] == "matmul" else "gbps"]
    return {
        run: Bounds(
            link_gbps={k: v for k, v in of.items() if isinstance(k, int)},
            dma_gbps=of["link_dma"],
            hbm_gbps=of["hbm"],
            tflops=of["matmul"],
        )
        for run, of in found.items()
        if {"link_dma", "hbm", "matmul"} <= set(of)
    }


def with_limits(rows: Sequence[Row]) -> list[Row]:
    """Return the measured rows with their limit and the share of it that they reach.

    `limit_s` is the largest of: the weights once over the link (not for weights in device memory),
    activations in device memory once, the operations on the SMs in use. `fraction` is limit_s over
    time_s, and `link_gbps` the weights over the time. Rows of a run without bounds have no limit.
    """
    bounds, found = bounds_by_run(rows), []
    for original in rows:
        row = dict(original)
        if row["status"] != "ok" or "time_s" not in row or "flops" not in row:
            continue
        if of := bounds.get(row["run"]):
            sms = row.get("sm_limit", WHOLE)
            local = row["what"] == "resident" or "w_in" in row
            over_link = 0 if local else row["weight_bytes"]
            in_memory = row["activation_bytes"] + (row["weight_bytes"] if local else 0)
            row |= limited(row, of.seconds(over_link, in_memory, row["flops"], sms))
        if row["what"] != "resident" and "w_in" not in row:
            row["link_gbps"] = row["weight_bytes"] / row["time_s"] / 1e9
        found.append(row)
    return found


def cells(rows: Iterable[Row]) -> dict[Cell, list[Row]]:
    """Return the rows of `kernels` by GEMM and SMs; rivals use the whole GPU."""
    found: dict[Cell, list[Row]] = defaultdict(list)
    for row in rows:
        if "w_in" in row:  # weights in device memory, since the host's cannot be read
            continue
        if row["status"] == "ok" and "time_s" in row and {"k", "n", "m"} <= set(row):
            found[row["k"], row["n"], row["m"], row.get("sm_limit", WHOLE)].append(row)
    return dict(found)


def best(rows: Iterable[Row], **where: Any) -> Row | None:
    """Return the fastest of the rows with these values, None if there is none."""
    chosen = [row for row in rows if all(row.get(k) == v for k, v in where.items())]
    return min(chosen, key=lambda row: float(row["time_s"]), default=None)


def dataflow(row: Row) -> str:
    """Return the dataflow of a row of `kernels`: "sym 4", "asym", "mix", or the rival's name."""
    if row["what"] != "hybrid":
        return str(row["what"])
    if row["alpha"] == 0:
        return "asym"
    return f"sym {row['cluster']}" if row["alpha"] == 1 else "mix"


def complete(rows: Sequence[Row]) -> bool:
    """Return True if both pure dataflows of a cell were measured."""
    return best(rows, alpha=1.0) is not None and best(rows, alpha=0.0) is not None


def typical(bounds: Iterable[Bounds]) -> Bounds | None:
    """Return the median bounds over runs, None without runs."""
    of = list(bounds)
    if not of:
        return None
    sms = {n for b in of for n in b.link_gbps}
    return Bounds(
        link_gbps={
            n: statistics.median(b.link_gbps[n] for b in of if n in b.link_gbps) for n in sms
        },
        dma_gbps=statistics.median(b.dma_gbps for b in of),
        hbm_gbps=statistics.median(b.hbm_gbps for b in of),
        tflops=statistics.median(b.tflops for b in of),
    )


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean, NaN for no values."""
    logs = [math.log(v) for v in values]
    return math.exp(statistics.fmean(logs)) if logs else math.nan
