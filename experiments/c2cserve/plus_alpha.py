"""Alpha by prediction, alone and with placement and chunk, against Algorithm 2 and hindsight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from experiments.c2cserve.fleets import catalog
from experiments.c2cserve.measures import measures
from experiments.c2cserve.replay import TRACES, describe, replay
from experiments.claims import Better, improvements_of
from experiments.figure import SIMULATOR, Computed, Context, figure

__all__ = ["HINDSIGHT", "PAPER", "RULES", "Workload", "compute", "hindsight"]

PAPER: Final = "Algorithm 2"
JOINT, HINDSIGHT = "joint", "hindsight"
# Rule -> settings. The first is the paper's controller, as an operator runs the system.
RULES: Final[Mapping[str, tuple[str, ...]]] = {
    PAPER: ("system=c2cserve",),
    "roofline": ("system=c2cserve", "system/alpha=roofline"),
    "priced": ("system=c2cserve", "system/alpha=priced"),
    "predictive": ("system=c2cserve", "system/alpha=predictive"),
    JOINT: ("system=c2cserve_joint",),
}
# Choices of hindsight for each part.
PARTS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "alpha": {
        **{
            f"static {a:g}": ("system/alpha=static", f"system.alpha.initial={a:g}")
            for a in (0.0, 0.5, 1.0)
        },
        **{n: (f"system/alpha={n}",) for n in ("feedback", "roofline", "priced", "predictive")},
    },
    "chunk": {
        **{str(c): ("system/chunk=fixed", f"system.chunk.tokens={c}") for c in (512, 1024, 4096)},
        **{n: (f"system/chunk={n}",) for n in ("profiled", "by_queue", "by_cost")},
    },
    "place": {
        n: (f"system/place={n}",) for n in ("bandwidth_aware", "least_predicted", "first_idle")
    },
}
START: Final = {"alpha": "predictive", "chunk": "by_cost", "place": "least_predicted"}
ROUNDS: Final = 2
QUICK_REQUESTS: Final = 4_000
COLUMNS: Final[Mapping[str, tuple[str, str, Better]]] = {
    "both_percent": ("both targets met", "%", "more"),
    "ttft_p99_s": ("p99 TTFT", "s", "less"),
    "tpot_p99_s": ("p99 TPOT", "s", "less"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Load on one GH200. `models`: number of models, half Llama-3 3B, half 8B."""

    models: int
    compression: float
    layout: str

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"{self.models} models, x{self.compression:g}, {self.layout}"

    @property
    def settings(self) -> tuple[str, ...]:
        """Overrides of catalog and layout."""
        return (*catalog(self.models), f"mig={self.layout}")


# A quiet link, a busy link, more models than slices, and unlike slices.
WORKLOADS: Final = (
    Workload(models=6, compression=12.0, layout="7x12gb"),
    Workload(models=6, compression=60.0, layout="7x12gb"),
    Workload(models=16, compression=8.0, layout="7x12gb"),
    Workload(models=6, compression=8.0, layout="2x2g_3x1g"),
)


@figure("plus.alpha", title="Alpha, chunk and placement by prediction (beyond the paper)",
        draw="prediction.draw_plus_alpha", needs=SIMULATOR, traces=TRACES)  # fmt: skip
def compute(context: Context) -> Computed:
    """Return latency and attainment of every rule and of hindsight, by workload and seed."""
    workloads = WORKLOADS[:1] if context.quick else WORKLOADS
    seeds = context.seeds[:2] if context.quick else context.seeds
    runs = [(w, seed) for w in workloads for seed in seeds]
    rows: list[dict[str, Any]] = []
    for workload, seed in context.each(runs):
        rows += _of_seed(context, workload, seed)
    part = f" (its first {QUICK_REQUESTS:,} requests)" if context.quick else ""
    choices = " x ".join(f"{len(options)} of {name}" for name, options in PARTS.items())
    return Computed(
        tables={"rules": pa.Table.from_pylist(rows)},
        results=(),
        caption=(

            "Share of requests within both targets and latencies, by the rule that chooses alpha. "
            "Dots: median over seeds; lines: range. Joint: alpha, chunk and placement by "
            "prediction. Hindsight: best settings with the requests known, link variant "
            f"'{context.link_variant}'."

        ),
        assumptions=(

            f"Load: {describe(context, workloads[0].compression)}{part}.",
            "Other time compressions are named beside their rows.",
            "Half of the models on the one GH200 are Llama-3 3B, half are 8B.",
            "Every rule runs in the system c2cserve and replaces its alpha; joint also replaces "
            "its chunk and placement.",
            f"Hindsight searches {choices}, one part after another, for each seed anew.",
            "Hindsight may also choose any rule shown.",
            "Hindsight prefers the larger share of requests within both targets, then the lower "
            "p99 TTFT.",
            _verdict(rows),

        ),
        report=_report(rows),
        improvements=improvements_of(
            rows, (("predictive", PAPER), (JOINT, PAPER), (JOINT, HINDSIGHT)), COLUMNS,
            where=lambda r: str(r["workload"]), by="rule",
        ),
    )  # fmt: skip


def _of_seed(context: Context, workload: Workload, seed: int) -> list[dict[str, Any]]:
    """Return a row for every rule and for hindsight, of one workload and seed."""
    part = (f"workload.max_requests={QUICK_REQUESTS}",) if context.quick else ()

    def run(settings: Sequence[str]) -> dict[str, Any]:
        return measures(
            replay(context, workload.compression, (*settings, *workload.settings, *part), seed)
        )

    at: dict[str, Any] = {"workload": workload.name, "seed": seed}
    found = [at | {"rule": name, "chosen": "", **run(s)} for name, s in RULES.items()]
    chosen, best = hindsight(run, rounds=1 if context.quick else ROUNDS)
    # hindsight may choose one of the rules as well
    for row in found:
        if _worth(row) > _worth(best):
            chosen, best = row["rule"], {k: row[k] for k in best}
    return [*found, at | {"rule": HINDSIGHT, "chosen": chosen, **best}]


def hindsight(
    run: Callable[[Sequence[str]], dict[str, Any]], *, rounds: int = ROUNDS
) -> tuple[str, dict[str, Any]]:
    """Return the best settings for known requests, in words, and their measures.

    Coordinate descent: each part in turn gets its best choice with the others fixed, until none
    changes. The result is not proven to be the best combination.

    Args:
      run: function from settings to measures.
      rounds: most rounds over all parts.
    """
    seen: dict[tuple[str, ...], dict[str, Any]] = {}

    def worth(chosen: Mapping[str, str]) -> tuple[float, float]:
        key = tuple(chosen[p] for p in PARTS)
        if key not in seen:
            settings = [s for p, name in zip(PARTS, key, strict=True) for s in PARTS[p][name]]
            seen[key] = run(["system=c2cserve", *settings])
        return _worth(seen[key])

    chosen = dict(START)
    for _ in range(rounds):
        before = dict(chosen)
        for part, options in PARTS.items():
            offered = [{**chosen, part: name} for name in options]
            chosen = max(offered, key=worth)
        if chosen == before:
            break
    best = max(seen, key=lambda key: _worth(seen[key]))
    return ", ".join(f"{p} {n}" for p, n in zip(PARTS, best, strict=True)), seen[best]


def _worth(row: Mapping[str, Any]) -> tuple[float, float]:
    return (row["both_percent"], -row["ttft_p99_s"])


def _verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    said = []
    for name in dict.fromkeys(r["workload"] for r in rows):
        of = {
            rule: [r["both_percent"] for r in rows if (r["workload"], r["rule"]) == (name, rule)]
            for rule in (PAPER, "predictive", JOINT, HINDSIGHT)
        }
        shares = ", ".join(f"{rule} {np.median(v):.2f}" for rule, v in of.items())
        said.append(f"{name}: {shares}")
    return f"Within both targets, median %: {'; '.join(said)}."


def _report(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    head = ("workload", "rule", "both met %", "TTFT p50 s", "p99", "TPOT p50 s", "p99", "chosen")
    columns = (("both_percent", 2), ("ttft_p50_s", 3), ("ttft_p99_s", 3), ("tpot_p50_s", 3),
               ("tpot_p99_s", 3))  # fmt: skip
    body = []
    for workload, rule in dict.fromkeys((r["workload"], r["rule"]) for r in rows):
        here = [r for r in rows if (r["workload"], r["rule"]) == (workload, rule)]
        cells = []
        for column, digits in columns:
            values = [r[column] for r in here]
            cells.append(
                f"{np.median(values):.{digits}f} ({min(values):.{digits}f} to "
                f"{max(values):.{digits}f})"
            )
        chosen = "; ".join(dict.fromkeys(r["chosen"] for r in here if r["chosen"]))
        body.append((workload, rule, *cells, chosen))
    return (head, *body)
