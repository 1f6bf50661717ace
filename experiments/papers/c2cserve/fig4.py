"""Latency and bytes of SymGEMM, AsymGEMM and HybridGEMM over MIG layouts (C2CServe, Fig. 4)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from c2c.cost import DEFAULT_ALPHAS, gemm_time, load_constants
from c2c.hardware import link_gbps, load_mig, slices
from c2c.ranges import In
from experiments.claims import Result, Sample, answer, claim
from experiments.figure import Computed, Context, figure
from experiments.papers.c2cserve.settings import Chip, Gemm

__all__ = ["compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataflows:
    """Experiment: a GEMM, and layouts."""

    chip: Chip
    layouts: tuple[str, ...]
    gemm: Gemm
    alphas: Annotated[int, In("[2, 10**5)")]


@figure("fig4", title="Fig. 4: GEMM dataflows over MIG layouts", experiment=Dataflows,
        draw=".drawing.gemm.draw_fig4")  # fmt: skip
def compute(context: Context, experiment: Dataflows) -> Computed:
    """Return latency over (layout, alpha) and the pure dataflows' bytes."""
    chip, constants = experiment.chip.platform, load_constants()
    shared = link_gbps(chip.link, context.link_variant)
    alphas = np.linspace(0.0, 1.0, experiment.alphas)
    gemm, whole = experiment.gemm, experiment.layouts[0]
    rows: list[dict[str, Any]] = []
    for name in experiment.layouts:
        instances = load_mig(name).instances
        time = gemm_time(
            *gemm.mnk,
            alphas,
            slice_=slices(chip, name)[0],
            constants=constants,
            link_gbps=shared,
        )
        rows += [
            {
                "layout": name,
                "instances": instances,
                "alpha": float(alpha),
                "latency_ms": float(time.time_s[i]) * 1e3,
                "link_gb": float(time.traffic.link_bytes[i]) / 1e9,
                "hbm_gb": float(time.traffic.hbm_bytes[i]) / 1e9,
                "published_ms": None,
            }
            for i, alpha in enumerate(alphas)
        ]
    latency = {(r["layout"], r["alpha"]): r for r in rows}
    for alpha, path in ((1.0, "sym"), (0.0, "asym")):
        printed = claim(f"c2cserve.fig4a.full_gpu.{path}_latency").value
        latency[whole, alpha]["published_ms"] = float(printed)

    full = [r for r in rows if r["layout"] == whole]
    caption = (
        "(a) Latency of one GEMM with weights in host memory on one slice of each layout. (b) "
        f"Bytes moved on the full GPU. Diamonds: paper; {context.link_text(shared)}."
    )
    assumptions = (
        f"The GEMM has M={gemm.m}, K={gemm.k}, N={gemm.n} in BF16.",
        "One slice runs at a time; the paper does not say whether all run at once.",
        f"HybridGEMM has the best of {len(alphas)} alphas.",
        "Only the two latencies on the full GPU were fitted; those on slices are predictions.",
        "The M tile of 256 follows from the printed 5.37 GB.",
    )
    return Computed(
        tables={"latency": pa.Table.from_pylist(rows), "bytes": _bytes(full)},
        results=_results(latency, full, context.link_variant),
        caption=caption,
        finding=_finding(rows),
        assumptions=assumptions,
    )


def _finding(rows: list[dict[str, Any]]) -> str:
    gains = {}
    for layout in dict.fromkeys(r["layout"] for r in rows):
        here = {r["alpha"]: r["latency_ms"] for r in rows if r["layout"] == layout}
        gains[layout] = min(here[0.0], here[1.0]) / min(here.values())
    best = max(gains, key=lambda layout: gains[layout])
    return (
        f"HybridGEMM is at least as fast as either pure dataflow, and {gains[best]:.2f} times as "
        f"fast as the better one on {best}"
    )


def _falls(values: list[float]) -> bool:
    return all(b <= a for a, b in pairwise(values))


def _bytes(full: list[dict[str, Any]]) -> pa.Table:
    rows = []
    for path, row in (("sym", full[-1]), ("asym", full[0])):
        for link, key in (("c2c", "link_gb"), ("hbm", "hbm_gb")):
            printed = float(claim(f"c2cserve.fig4b.{path}.{link}_bytes").value)
            rows.append({"path": path, "link": link, "gb": row[key], "published_gb": printed})
    return pa.Table.from_pylist(rows)


def _results(
    latency: dict[tuple[str, float], dict[str, Any]], full: list[dict[str, Any]], variant: str
) -> tuple[Result, ...]:
    def pair(layout: str) -> dict[str, float]:
        return {p: latency[layout, a]["latency_ms"] for p, a in (("asym", 0.0), ("sym", 1.0))}

    def result(
        claim_id: str, ours: Any, note: str = "", sample: Sample = "out-of-sample"
    ) -> Result:
        return answer(f"c2cserve.{claim_id}", ours, note, sample=sample, link_variant=variant)

    one, seven, three = pair("1x96gb"), pair("7x12gb"), pair("3x24gb")
    sym, asym = full[-1], full[0]
    order = {
        "c2c": {"asym": asym["link_gb"], "sym": sym["link_gb"]},
        "hbm": {"asym": asym["hbm_gb"], "sym": sym["hbm_gb"]},
    }
    grid = [r for r in full if r["alpha"] in DEFAULT_ALPHAS]
    per_sm = "That reduction takes time of each SM was settled with these orders in view."
    tile = "The M tile of 256 was read off this number."
    return (
        result("fig4a.full_gpu.sym_latency", one["sym"], "Fitted.", "in-sample"),
        result("fig4a.full_gpu.asym_latency", one["asym"], "Fitted.", "in-sample"),
        result("fig4a.full_gpu.order", one, "Follows from the fit.", "in-sample"),
        result(
            "fig4a.mig3.parity", three, f"Layout 3x24gb; a tie is within 20%. {per_sm}", "in-sample"
        ),
        result("fig4a.mig7.asym_slower", seven, f"Layout 7x12gb. {per_sm}", "in-sample"),
        result("fig4b.sym.c2c_bytes", sym["link_gb"], tile, "in-sample"),
        result("fig4b.asym.c2c_bytes", asym["link_gb"], "K x N x 2 bytes.", "identity"),
        result(
            "fig4b.sym.hbm_bytes",
            sym["hbm_gb"],
            "The shape of a wave was chosen with it in view.",
            "in-sample",
        ),
        result(
            "fig4b.asym.hbm_bytes",
            asym["hbm_gb"],
            "The K of a pass (kc) was chosen with it in view.",
            "in-sample",
        ),
        result("fig4b.tradeoff", order),
        result(
            "fig3.hybrid_interpolates",
            {"c2c": [r["link_gb"] for r in full], "hbm": [r["hbm_gb"] for r in full]},
            f"On {len(full)} alphas. One more read of X can outweigh a few columns of O; on the "
            f"kernel repository's {len(grid)} alphas alone HBM bytes "
            f"{'are' if _falls([r['hbm_gb'] for r in grid]) else 'are not'} monotone.",
        ),
    )
