"""Top of a summary: cases by outcome, rates against the link, shares of limits."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.gpu.cases import Row
from experiments.gpu.kernels import analysis

Rows = Mapping[str, Sequence[Row]]

MOST_NAMED = 20
MOST_REASON = 260


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Number of cases by outcome; a case with several rows counts once."""

    passed: int = 0
    failed: int = 0
    hung: int = 0
    crashed: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        return (
            f"{self.passed} passed, {self.failed} failed, {self.hung} hung, "
            f"{self.crashed} crashed, {self.skipped} skipped"
        )


def count(rows: Iterable[Row]) -> Counts:
    """Count cases by the outcome in their latest row."""
    latest = {row["case"]: _outcome(row) for row in rows}
    return Counts(**Counter(latest.values()))


def _outcome(row: Row) -> str:
    if row["status"] == "failed":
        return str(row.get("lost") or "failed")
    return "passed" if row["status"] == "ok" else "skipped"


def lines(
    rows: Rows, covered: Mapping[str, Mapping[str, Any]], stopped: Mapping[str, str]
) -> list[str]:
    """Return the top of a summary as lines of Markdown."""
    real = {name: [r for r in of if not r.get("dry_run")] for name, of in rows.items()}
    found = ["| section | passed | failed | hung | crashed | skipped | not run |"]
    found.append("| --- " * 7 + "|")
    for name, state in covered.items():
        c = count(rows.get(name, ()))
        if not state["cases"] and c == Counts():
            continue
        cells = (c.passed, c.failed, c.hung, c.crashed, c.skipped, state["unmeasured"])
        found.append(f"| {name} | {' | '.join(map(str, cells))} |")
    found += [f"\n**{name} was given up**: {why[:MOST_REASON]}" for name, why in stopped.items()]
    for title, part in (
        ("Failed, hung or crashed", _named(rows)),
        ("Rates", _rates(real)),
        ("hybrid_gemm against its limit, whole GPU", _fractions(real.get("kernels", ()))),
        ("Slices on the link", _slices(real.get("mig", ()))),
    ):
        if part:
            found += ["", f"## {title}", "", *part]
    return found


def _named(rows: Rows) -> list[str]:
    """Return a line for each failed case, up to `MOST_NAMED`; hung and crashed ones first."""
    bad = {
        (name, row["case"]): row
        for name, of in rows.items()
        for row in of
        if row["status"] == "failed"
    }
    order = ("hung", "crashed", "failed")
    ranked = sorted(bad.items(), key=lambda one: order.index(_outcome(one[1])))
    named = [
        f"- {_outcome(row)}: {name}, {row.get('test') or key}: "
        f"{' '.join(str(row.get('reason', '')).split())[:MOST_REASON]}"
        for (name, key), row in ranked[:MOST_NAMED]
    ]
    more = len(ranked) - MOST_NAMED
    return [*named, f"- and {more} more: see the rows"] if more > 0 else named


def _rates(rows: Rows) -> list[str]:
    """Return the rates of link, device memory, tensor cores and TMA over the link."""
    ok = {name: [r for r in of if r["status"] == "ok"] for name, of in rows.items()}
    found, dma = [], 0.0
    for what, label, column, unit in (
        ("pinned_to_device", "copies from pinned memory", "gbps", "GB/s"),
        ("device_to_pinned", "copies to pinned memory", "gbps", "GB/s"),
        ("device_memory", "device memory, reads and writes", "gbps", "GB/s"),
        ("matmul_bf16", "bf16 products", "tflops", "TFLOP/s"),
    ):
        values = [r[column] for r in ok.get("link", ()) if what in (r.get("copy"), r.get("what"))]
        if values:
            found.append(f"- {label}: {max(values):.4g} {unit}")
            dma = max(values) if what == "pinned_to_device" else dma
    facts = [r for r in ok.get("facts", ()) if "gbps" in r]
    reads = [r["gbps"] for r in facts if r.get("fact") == "tma" and r.get("place") == "host"]
    if reads:
        share = f", {max(reads) / dma:.0%} of copies" if dma else ""
        found.append(f"- TMA from host memory, all SMs: {max(reads):.4g} GB/s{share}")
    wrong = [r for r in facts if r.get("values_right") is False]
    if wrong:
        found.append(f"- **{len(wrong)} reads by TMA gave wrong values**")
    return found


def _fractions(rows: Sequence[Row]) -> list[str]:
    """Return a table by rows of X: best link rate, and each GEMM's best share of its limit."""
    best: dict[int, list[Row]] = {}
    for (*_, m, sms), of in analysis.cells(analysis.with_limits(rows)).items():
        hybrid = analysis.best(
            [r for r in of if r["what"] in ("hybrid", "automatic") and "fraction" in r]
        )
        if hybrid is not None and sms == analysis.WHOLE:
            best.setdefault(m, []).append(hybrid)
    if not best:
        return []
    found = ["| M | GEMMs | GB/s of weights, best | share of the limit, median | worst | binds |"]
    found.append("| --- " * 6 + "|")
    for m, of in sorted(best.items()):
        shares = [r["fraction"] for r in of]
        found.append(
            f"| {m} | {len(of)} | {max(r['link_gbps'] for r in of):.4g} | "
            f"{statistics.median(shares):.2f} | {min(shares):.2f} | "
            f"{', '.join(sorted({r['binds'] for r in of}))} |"
        )
    return found


def _slices(rows: Sequence[Row]) -> list[str]:
    """Return the link rates of slices, alone and together, and by number of SMs."""
    ok = [r for r in rows if r["status"] == "ok" and "gbps" in r]
    found = [f"- slice {r['slice']} alone: {r['gbps']:.4g} GB/s" for r in ok if "slice" in r]
    together = {r["slices"]: r["total_gbps"] for r in ok if "slices" in r}
    found += [f"- {n} slices together: {rate:.4g} GB/s" for n, rate in sorted(together.items())]
    by_sms = {r["sms"]: r["gbps"] for r in ok if r["what"] == "sms"}
    if by_sms:
        some = [n for n in (1, 2, 4, 8, 16, 18, 32, 64, 132) if n in by_sms]
        rates = ", ".join(f"{n}: {by_sms[n]:.4g}" for n in some or sorted(by_sms))
        found.append(f"- GB/s by number of SMs that read: {rates}")
    groups = {(r["groups"], r["sms_each"]): r["total_gbps"] for r in ok if "groups" in r}
    found += [
        f"- {n} groups of {each} SMs together: {rate:.4g} GB/s"
        for (n, each), rate in sorted(groups.items())
    ]
    return found
