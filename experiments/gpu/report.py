"""Report of a GPU run: each aim passed, failed or unmeasured, judged by the rows alone."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from c2c.atomic import write_json, write_text
from experiments.gpu import overview
from experiments.gpu.cases import Row
from experiments.gpu.kernels import analysis, refuting
from experiments.gpu.sections import SECTIONS
from experiments.gpu.store import Store
from experiments.gpu.transformer import results as transformer

Rows = Mapping[str, Sequence[Row]]
"""Rows by section."""

Listed = Mapping[str, Sequence[str]]
"""Keys of all cases, by section."""

PREFILL_ROWS, DECODE_ROWS = 512, 64
PREFILL_SHARE, DECODE_SHARE = 0.80, 0.90
CHOICE = 1.1
TABLES = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One aim, its status and the measured values."""

    aim: str
    status: str  # pass, fail, unmeasured, by construction
    measured: str


def read(folder: Path) -> dict[str, tuple[Row, ...]]:
    """Return the rows of every section in a device's folder."""
    return {name: Store(folder / name).rows for name in SECTIONS if (folder / name).exists()}


def findings(rows: Rows) -> list[Finding]:
    """Judge every aim by these rows, leaving out those of dry runs."""
    real = {name: [r for r in of if not r.get("dry_run")] for name, of in rows.items()}
    found = [judge(real) for judge in _JUDGES]
    for aim, holds, measured in transformer.aims(real.get("transformer", ())):
        found.append(judged(aim, holds, measured) if holds else unmeasured(aim))
    return found


def unmeasured(aim: str, why: str = "no rows") -> Finding:
    """Return the finding for an aim that no row measures."""
    return Finding(aim=aim, status="unmeasured", measured=why)


def judged(aim: str, holds: Sequence[bool], measured: str) -> Finding:
    """Return the finding for an aim that passes if every case meets it."""
    return Finding(aim=aim, status="pass" if all(holds) else "fail", measured=measured)


def _correct(rows: Rows) -> Finding:
    aim = "every kernel is correct at real sizes (tests/gpu)"
    tests = [r for name in ("smoke", "correctness") for r in rows.get(name, ())]
    counts = overview.count(tests)
    ran = counts.passed + counts.failed + counts.hung + counts.crashed
    if not ran:
        return unmeasured(aim, f"{len(tests)} tests skipped" if tests else "no rows")
    return judged(aim, [counts.passed == ran], str(counts))


def _operand(rows: Rows) -> Finding:
    aim = "the kernel reads host memory itself: correct values, no copy by XLA"
    facts = [r for r in rows.get("facts", ()) if r["status"] == "ok"]
    right = [
        bool(r["values_right"]) for r in facts if r.get("place") == "host" and "values_right" in r
    ]
    copied = [bool(r["copied"]) for r in facts if "copied" in r]
    if not right or not copied:
        return unmeasured(aim)
    text = f"{sum(right)} of {len(right)} reads correct; copied: {any(copied)}"
    return judged(aim, [*right, *(not c for c in copied)], text)


def _limit(
    aim: str, keep: Callable[[int], bool], value: Callable[[Row], float | None], share: float
) -> Callable[[Rows], Finding]:
    """Return a judge of the fastest configuration in each cell on the whole GPU."""

    def judge(rows: Rows) -> Finding:
        found: dict[analysis.Cell, float] = {}
        grid = analysis.with_limits(list(rows.get("kernels", ())))
        for cell, of in analysis.cells(grid).items():
            hybrid = [r for r in of if r["what"] == "hybrid"]
            if cell[3] != analysis.WHOLE or not keep(cell[2]) or not analysis.complete(hybrid):
                continue
            reached = value(min(hybrid, key=lambda r: float(r["time_s"])))
            if reached is not None:
                found[cell] = reached
        if not found:
            return unmeasured(aim)
        worst = min(found, key=lambda cell: found[cell])
        met = sum(v >= share for v in found.values())
        text = (
            f"{met} of {len(found)} GEMMs; median {statistics.median(found.values()):.2f}, worst "
            f"{found[worst]:.2f} at K={worst[0]} N={worst[1]} M={worst[2]}"
        )
        return judged(aim, [v >= share for v in found.values()], text)

    return judge


def _of_link(row: Row) -> float | None:
    """Return the share of the measured link rate, None if the link is not the limit."""
    if row.get("binds") != "link":
        return None
    return float(row["fraction"])


def _mix(rows: Rows) -> Finding:
    aim = "hybrid at its best alpha is at most 1.03x the better pure dataflow"
    ratios, compared = [], 0
    for of in analysis.cells(rows.get("kernels", ())).values():
        hybrid = [r for r in of if r["what"] == "hybrid"]
        mixes = [r for r in hybrid if 0 < r["alpha"] < 1]
        if not mixes or not analysis.complete(hybrid):
            continue
        compared += 1
        pure = min(float(r["time_s"]) for r in hybrid if r["alpha"] in (0.0, 1.0))
        ratios.append(min(float(r["time_s"]) for r in mixes) / pure)
    if not compared:
        return unmeasured(aim)
    wins = sum(r < 1 for r in ratios)
    return Finding(
        aim=aim,
        status="by construction",
        measured=(
            f"alpha 0 and 1 are the pure dataflows; the best true mix takes "
            f"{statistics.median(ratios):.2f}x of them (median of {compared}), from "
            f"{min(ratios):.2f}x to {max(ratios):.2f}x, and is faster in {wins}"
        ),
    )


def _staged(rows: Rows) -> Finding:
    aim = "faster than copying the weights first, overlapped or not"
    gains: dict[analysis.Cell, float] = {}
    for cell, of in analysis.cells(rows.get("kernels", ())).items():
        ours = analysis.best(of, what="hybrid")
        rivals = [r for r in of if r["what"] in ("staged_serial", "staged_overlapped")]
        names = {r["what"] for r in rivals}
        if cell[3] == analysis.WHOLE and ours is not None and len(names) == 2:
            gains[cell] = min(float(r["time_s"]) for r in rivals) / float(ours["time_s"])
    if not gains:
        return unmeasured(aim)
    worst = min(gains, key=lambda cell: gains[cell])
    text = (
        f"{sum(g > 1 for g in gains.values())} of {len(gains)} GEMMs; geometric mean "
        f"{analysis.geometric_mean(gains.values()):.2f}x, worst {gains[worst]:.2f}x "
        f"at K={worst[0]} N={worst[1]} M={worst[2]}"
    )
    return judged(aim, [g > 1 for g in gains.values()], text)


def _automatic(rows: Rows) -> Finding:
    aim = f"the choice of hybrid_gemm takes at most {CHOICE}x the best measured time"
    ratios = []
    for of in analysis.cells(rows.get("kernels", ())).values():
        hybrid = [r for r in of if r["what"] == "hybrid"]
        chosen = analysis.best(of, what="automatic")
        if chosen is not None and analysis.complete(hybrid):
            ratios.append(chosen["time_s"] / min(float(r["time_s"]) for r in hybrid))
    if not ratios:
        return unmeasured(aim)
    text = (
        f"median {statistics.median(ratios):.2f}x, worst {max(ratios):.2f}x of {len(ratios)} GEMMs"
    )
    return judged(aim, [r <= CHOICE for r in ratios], text)


def _tables(rows: Rows) -> Finding:
    aim = f"Tessera's tables give the times of a step's kernels to {TABLES:.0%} in the median"
    steps = [
        r for r in rows.get("tessera", ())
        if r["status"] == "ok" and r.get("kernel") == "the step"
    ]  # fmt: skip
    if not steps:
        return unmeasured(aim)
    text = "; ".join(
        f"{r['tokens']} tokens: {r['median_error']:.0%}, by time {r['weighted_error']:.0%}"
        for r in sorted(steps, key=lambda r: int(r["tokens"]))
    )
    return judged(aim, [r["median_error"] <= TABLES for r in steps], text)


_JUDGES: tuple[Callable[[Rows], Finding], ...] = (
    _correct,
    _operand,
    _limit(
        f"at least {PREFILL_SHARE:.0%} of the largest limit for M >= {PREFILL_ROWS}",
        lambda m: m >= PREFILL_ROWS,
        lambda row: row.get("fraction"),
        PREFILL_SHARE,
    ),
    _limit(
        f"at least {DECODE_SHARE:.0%} of the measured link for M <= {DECODE_ROWS}",
        lambda m: m <= DECODE_ROWS,
        _of_link,
        DECODE_SHARE,
    ),
    _mix,
    _staged,
    _automatic,
    _tables,
)


def coverage(rows: Rows, listed: Listed) -> dict[str, dict[str, Any]]:
    """Return the number of cases of each section, in all and by status.

    Args:
      rows: rows by section.
      listed: keys of all cases by section; rows of other cases do not count. For a section that is
        not listed, the cases with rows count.
    """
    found = {}
    for name in SECTIONS:
        latest = {r["case"]: r["status"] for r in rows.get(name, ())}
        keys = listed.get(name, tuple(latest))
        states = Counter(latest.get(key, "unmeasured") for key in keys)
        found[name] = {
            "cases": len(keys),
            **{s: states[s] for s in ("ok", "failed", "skipped", "unmeasured")},
            "missing": sorted(
                {r["reason"][:200] for r in rows.get(name, ()) if r["status"] == "skipped"}
            )[:10],
        }
    return found


def write(
    folder: Path,
    listed: Listed,
    stopped: Mapping[str, str] | None = None,
    *,
    dry_run: bool = False,
) -> str:
    """Write `summary.json` and `summary.md` into a device's folder; return the text.

    Args:
      folder: folder of the device.
      listed: keys of all cases by section, see `coverage`.
      stopped: reasons why sections were given up in this run.
      dry_run: True if nothing here is a measurement.
    """
    stores = {name: Store(folder / name) for name in SECTIONS if (folder / name).exists()}
    rows = {name: store.rows for name, store in stores.items()}
    runs = {run: facts for store in stores.values() for run, facts in store.runs.items()}
    found, covered = findings(rows), coverage(rows, listed)
    lines = [*overview.lines(rows, covered, stopped or {}), *_terms(rows, runs), *_constants(rows)]
    text = as_text(folder.name, lines, found, covered, runs, dry_run=dry_run)
    write_json(
        folder / "summary.json",
        {
            "dry_run": dry_run,
            "findings": [asdict(f) for f in found],
            "coverage": covered,
            "stopped": dict(stopped or {}),
            "runs": runs,
        },
    )
    write_text(folder / "summary.md", text)
    return text


def _terms(rows: Rows, runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the table of predicted terms and their measured values; empty if none is measured."""
    real = {name: [r for r in of if not r.get("dry_run")] for name, of in rows.items()}
    if all(term.measured(real) is None for term in refuting.TERMS):
        return []
    devices = [str(facts["device"]) for facts in runs.values() if "device" in facts]
    table = refuting.table(devices[-1] if devices else "", real)
    return ["", "## Terms of the predictions", "", *table]


def _constants(rows: Rows) -> list[str]:
    """Return the cost model's constants that these rows determine, beside the stored ones."""
    heading = ["", "## Constants of the cost model", ""]
    try:
        from c2c.cost.constants import load_constants
        from experiments.gpu.kernels import calibrate
    except ModuleNotFoundError as error:
        return [*heading, f"Not computed: no module {error.name}. {calibrate_later()}"]
    found = calibrate.measured(rows)
    if not found:
        return []
    stored = load_constants(calibrate.NAME)
    lines = ["| constant | stored | measured | from |", "| --- " * 4 + "|"]
    lines += [
        f"| {name} | {getattr(stored, name):.4g} | {one.value:.4g} | {one.why} |"
        for name, one in found.items()
    ]
    return [*heading, *lines, "", calibrate_later()]


def calibrate_later() -> str:
    """Return the sentence that says how to store the constants."""
    return "`c2c calibrate gpu <results> --write` stores them."


def as_text(
    device: str,
    first: Sequence[str],
    found: Sequence[Finding],
    covered: Mapping[str, Mapping[str, Any]],
    runs: Mapping[str, Any],
    *,
    dry_run: bool,
) -> str:
    """Return the summary as Markdown."""
    commits = sorted({str(facts.get("commit"))[:12] for facts in runs.values()})
    lines = [f"# {device}", ""]
    if dry_run:
        lines += [
            "A dry run on a CPU at tiny sizes, which checks programs and measures no speed.",
            "",
        ]
    if runs:
        lines += [f"Runs: {len(runs)}. Commits: {', '.join(commits)}.", ""]
    lines += [*first, "", "## Aims", ""]
    if known := [f for f in found if f.status != "unmeasured"]:
        lines += ["| aim | status | measured |", "| --- | --- | --- |"]
        lines += [f"| {f.aim} | {f.status} | {f.measured} |" for f in known]
        lines.append("")
    if unknown := [f for f in found if f.status == "unmeasured"]:
        lines.append(f"Unmeasured: {'; '.join(f'{f.aim} ({f.measured})' for f in unknown)}.")
    reasons = [(name, reason) for name, c in covered.items() for reason in c["missing"]]
    if reasons:
        lines += ["", "## Reasons for skipped cases", ""]
        lines += [f"- {name}: {reason}" for name, reason in reasons]
    return "\n".join(lines) + "\n"
