"""Find the cheapest fleets that serve a workload within its targets: chips, layouts, systems.

    c2c advise workload=file workload.path=my.csv catalog=mine slo.ttft_s=1
    c2c advise workload=poisson workload.rate_rps=4 hardware=gh200,h100_sxm
    c2c advise system=c2cserve_plus,aegaeon mig=7x12gb system.max_batch=32,64

Settings are those of `c2c simulate`. A sweep (a,b or range(1,9)) is compared, a single
value is fixed. Without settings of their own, these are compared: every chip with a price
(`hardware.gpu.usd_per_hour`), its layouts of equal slices, and `advise.systems`. A fleet serves if
`slo.attainment` of the requests meet both targets and no queue grows without end. Kinds of fleets
race over a sixteenth, a quarter and all of the requests, each with the fewest chips that serve.
After each part the dearer half is out, except the best kind of each chip that the command line
names. Before the answer "none", those that are out run on all requests. Of fleets of one price, the
first serves with the cost model's error, and has most load left.

    advise.systems=[...]    systems; default c2cserve_plus, c2cserve, serverlessllm_fast, aegaeon
    advise.fleets=[]        fleets of unlike chips to compare as well, files of conf/fleet
    advise.seeds=[0,1,2]    seeds of the last part, with each of which a fleet must serve; earlier
                            parts use the first one. Equal runs of two seeds are one
    advise.most=64          most chips of a fleet
    advise.keep=4           fewest kinds that stay in the race
    advise.within=2         highest price that is still compared, as a multiple of the cheapest
    advise.error=null       error of the cost model: does a fleet serve if all steps take this share
                            longer? null: each chip's own error on held-out measurements
    advise.workers=null     number of processes; null: one a core

Runs are folders in `<out>/points`. Run the same command again to resume a stopped search. The
answer is a folder in `out=`, or `folder=`: a table of all runs (Parquet), a figure, settings and
provenance, and answer.md and answer.json with each fleet's price, the load at which it breaks, and
the command that replays it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Final

import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.config import RunSetup, build
from c2c.errors import SettingError
from c2c.ranges import Count, In
from c2c.runs import RunDir
from c2c.workloads import doubts
from experiments.answers.command import answer_folder, answering, own_settings, refuse_seed
from experiments.answers.fleets import Arm, FleetSpace
from experiments.answers.interval import interval_of
from experiments.answers.left_out import left_out, why, why_lines, why_table
from experiments.answers.model_error import held_out_error
from experiments.answers.points import PointRunner, needs_compiling
from experiments.answers.quantity import quantity_of, with_value
from experiments.answers.race import Standing, Trial, parts_of, race
from experiments.answers.reachable import check_reachable
from experiments.answers.trials import Runs, outcome_of
from experiments.children import workers_of
from experiments.simulation.execute import CODE
from experiments.simulation.report import console

__all__ = ["AdviseSettings", "main"]

OUT = "runs/advise"
PACKAGES = (*CODE, "experiments.answers", "experiments.figures.advise")
NAMES = ("advise.parquet", "answer.json", "answer.md", "advise.png", "advise.svg")
COLUMNS: Final = (
    "USD/h", "USD/M tokens", "kWh/M, most", "on target %", "TTFT p99 s", "TPOT p99 ms",
)  # fmt: skip
MOST_TOLD: Final = 8  # fleets whose margins are searched
# Multiples of the workload's load at which a fleet is tried.
LOADS: Final = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)


@dataclass
class AdviseSettings:
    """Settings of the race, as in the module's docstring."""

    systems: list[str] = field(
        default_factory=lambda: ["c2cserve_plus", "c2cserve", "serverlessllm_fast", "aegaeon"]
    )
    fleets: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    most: Count = 64
    keep: Count = 4
    within: Annotated[float, In("[1, inf]")] = 2.0
    error: Annotated[float, In("[0, 10)", "a share")] | None = None
    workers: int | None = None


def main(arguments: list[str]) -> int:
    """Run the command; return the exit status: 1 if no fleet serves, 2 for invalid settings."""
    return answering(_advise, arguments, str(__doc__), sweep="")


def _advise(arguments: list[str], folder: str | None) -> int:
    for old in (a for a in arguments if a.startswith("search.")):
        raise SettingError(
            old.partition("=")[0], old.partition("=")[2], "a setting of group advise"
        )
    asked, given = own_settings(AdviseSettings, "advise", arguments)
    if not asked.systems or len(set(asked.systems)) < len(asked.systems):
        raise SettingError("advise.systems", asked.systems, "at least one name, each once")
    workers = workers_of(asked.workers, "advise.workers")
    refuse_seed("advise", asked.seeds, given)
    space = FleetSpace([f"out={OUT}", *given], folder, systems=asked.systems, fleets=asked.fleets)
    arms = space.arms()
    base = _first_that_builds(space, arms, asked.seeds[0])
    if not any(key.startswith(("workload", "catalog", "slo")) for key in space.open):
        check_reachable(base)
    out = console()
    root = Path(base.settings["out"]).expanduser()
    with answer_folder(
        "advise", asked, base, (base.settings["workload"]["name"],), packages=PACKAGES,
        files=NAMES, fleets=[arm.name for arm in arms],
    ) as (run, where, before):  # fmt: skip
        if before:
            print(f"{before['answer']}\nalready answered: {where}")
            return int(not before["fleets"])
        more = {
            "out": str(root / "points"), "folder": None, "overwrite": False, "figures": False,
            "timeline.rows": 0, "objective": None,
        }  # fmt: skip
        requests = int(base.workload.description["requests"])
        print(
            f"{requests:,} requests of {base.workload.description['name']} for "
            f"{len(base.serving.deployments)} models; comparing {len(arms)} kinds of fleets, "
            f"processes: {workers}"
        )
        for line in doubts(base.workload):
            out.print(line, style="bold", markup=False)
        if space.unpriced:
            print(
                f"not compared, as conf/hardware has no price: {', '.join(space.unpriced)}; "
                f"hardware={space.unpriced[0]} +hardware.gpu.usd_per_hour=<US dollars> sets one"
            )
        alone_first, chips = needs_compiling(base), space.asked(arms)
        may_miss = (1.0 - float(base.settings["slo"]["attainment"])) * requests
        with PointRunner(workers) as runner:
            runs = Runs(space, arms, more, requests, asked.seeds, runner, alone_first=alone_first)
            standings = race(
                arms, parts_of(requests), runs.serve, seeds=asked.seeds, most=asked.most,
                keep=asked.keep, within=asked.within, named=list(chips.values()),
                may_miss=requests if "slo.attainment" in space.open else may_miss,
            )  # fmt: skip
            fleets = _ranked(runs, standings, chips, given, base, asked.error)
        left = left_out(arms, standings, runs.found, {one["arm"] for one in fleets})
        served = {one["arm"] for one in fleets}
        shown = [
            min((row for row in left if row["arm"] in mine), key=lambda row: -row["met"])
            for mine in chips.values() if served.isdisjoint(mine)
        ] if fleets else left  # fmt: skip
        answer = _answer(fleets, left, asked, base)
        _write(run, base, runs, fleets, left, shown, answer)
    if fleets:
        _print(out, fleets)
    if shown:
        out.print(why_table(shown[:MOST_TOLD]))
    if len(shown) > MOST_TOLD:
        print(f"and {len(shown) - MOST_TOLD} more kinds, see answer.md")
    if refused := _refused(runs):
        print(f"{len(refused)} of {len(arms)} kinds are invalid; first error: {refused[0]}")
    if runs.seedless and len(asked.seeds) > 1:
        print("seeds: equal runs, as nothing in them is drawn; one run each")
    print(f"{answer}\nwritten: {where} (runs in {root / 'points'})")
    return int(not fleets)


def _first_that_builds(space: FleetSpace, arms: Sequence[Arm], seed: int) -> RunSetup:
    """Return the setup of the first kind of fleet that can be built, with few chips or many.

    Raises:
      SettingError: no kind can be built.
    """
    wrong: SettingError | None = None
    for chips in (1, 64):
        for arm in arms:
            try:
                return build(space.settings(arm.params, {"superchips": chips, "seed": seed}))
            except SettingError as error:
                wrong = wrong or error
    assert wrong is not None
    raise wrong


def _ranked(
    runs: Runs, standings: Mapping[int, Standing], chips: Mapping[str, Sequence[int]],
    given: Sequence[str], base: RunSetup, error: float | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the fleets that serve: by price, then whether with longer steps, then load left."""
    fleets = sorted(
        (
            _fleet(runs, arm, int(standing.serves), given)
            for arm, standing in standings.items()
            if standing.part == runs.requests and standing.serves < float("inf")
        ),
        key=lambda one: (one["usd_per_hour"], one["ttft_p99_s"]),
    )
    best_of_chip = {
        next((one["arm"] for one in fleets if one["arm"] in mine), None) for mine in chips.values()
    }
    for k, one in enumerate(fleets):
        is_tie = one["usd_per_hour"] == fleets[0]["usd_per_hour"]
        if k < MOST_TOLD or is_tie or one["arm"] in best_of_chip:
            one.update(_margin(runs, one, base, error))
    return sorted(
        fleets,
        key=lambda one: (
            one["usd_per_hour"], not one.get("serves_if_slower"), -one.get("serves_load", 0.0),
            one["ttft_p99_s"],
        ),
    )  # fmt: skip


def _fleet(runs: Runs, arm: int, chips: int, given: Sequence[str]) -> dict[str, Any]:
    """Return a fleet's price, latencies, attainment, and the command of its run."""
    kind = runs.arms[arm]
    mine = {
        trial.seed: point.summary
        for trial, point in runs.found.items()
        if (trial.arm, trial.chips, trial.part) == (arm, chips, runs.requests)
    }
    every = list(mine.values())
    met = interval_of([one["verdict"]["met"] for one in every])
    usd = round(chips * kind.usd_per_hour, 6)
    million_hours = 1e6 / fmean(one["output_tokens_per_s"] for one in every) / 3600.0
    power = None if kind.power_w is None else chips * kind.power_w * million_hours / 1e3
    fixed = [
        g for g in given
        if not g.startswith(("out=", "folder=")) and g.partition("=")[0] not in kind.params
    ]  # fmt: skip
    return {
        "arm": arm,
        "fleet": kind.with_chips(chips),
        "params": dict(kind.params),
        "chips": chips,
        "usd_per_hour": usd,
        "usd_per_million_tokens": usd * million_hours,
        "kwh_per_million_tokens_at_most": power,
        "met": met.mean,
        "met_half": met.half,
        "ttft_p99_s": fmean(one["ttft_s"]["p99"] for one in every),
        "tpot_p99_s": fmean(one["tpot_s"]["p99"] or 0.0 for one in every),
        "command": " ".join(
            ["c2c simulate", *map(_quoted, fixed), kind.name,
             f"superchips={chips}", f"seed={min(mine)}"]
        ),
    }  # fmt: skip


def _refused(runs: Runs) -> list[str]:
    """Return the error of each kind that failed with every number of chips."""
    by_arm: dict[int, list[str]] = {}
    for trial, point in runs.found.items():
        by_arm.setdefault(trial.arm, []).append(point.error)
    return [f"{runs.arms[arm].name}: {every[0]}" for arm, every in by_arm.items() if all(every)]


def _quoted(word: str) -> str:
    return f"'{word}'" if re.search(r"[^\w.=/:@,+~-]", word) else word


def _margin(
    runs: Runs, fleet: Mapping[str, Any], base: RunSetup, error: float | None
) -> dict[str, Any]:
    """Return a fleet's margins: the load at which it breaks, and the result with longer steps."""
    seeds = runs.seeds(fleet["arm"])
    trial = Trial(fleet["arm"], fleet["chips"], runs.requests, seeds[0])
    settings = runs.settings(trial)
    longer, why = error, "advise.error"
    if longer is None:
        parts = [part["hardware"] for part in settings["fleet"]["parts"]]
        chips = parts or settings["node"].get("gpus")
        longer, why = max(map(held_out_error, chips or [settings["hardware"].get("name", "")]))
    slower = {"scale": {key: value / (1.0 + longer) for key, value in settings["scale"].items()}}
    every = [runs.settings(replace(trial, seed=seed)) | slower for seed in seeds]
    served = [] if settings["node"] else [outcome_of(point).meets for point in runs.run(every)]
    found: dict[str, Any] = {
        "error": longer, "error_of": why, "serves_if_slower": all(served) if served else None,
        "binds": None,
    }  # fmt: skip
    if settings["workload"]["kind"] == "closed_loop":
        return found
    is_same = settings["workload"] == base.settings["workload"]
    quantity = quantity_of("rate", base if is_same else build(settings))
    low, high = 0, len(LOADS)  # bisection, as more load never mends a fleet
    while low < high:
        load = LOADS[(low + high) // 2]
        (point,) = runs.run([with_value(settings, quantity, load * quantity.start, trial.seed)])
        if outcome_of(point).meets:
            low = (low + high) // 2 + 1
        else:
            high = (low + high) // 2
            found["binds"] = (point.summary.get("verdict") or {}).get("binds")
    found["serves_load"] = LOADS[low - 1] if low else 1.0
    found["breaks_at_load"] = LOADS[low] if low < len(LOADS) else None
    return found


def _answer(
    fleets: Sequence[Mapping[str, Any]], left: Sequence[Mapping[str, Any]],
    asked: AdviseSettings, base: RunSetup,
) -> str:  # fmt: skip
    wanted = f"{100 * float(base.settings['slo']['attainment']):g} % of the requests on target"
    if not fleets:
        none = f"answer: none. No fleet of up to {asked.most} chips reaches {wanted}"
        if not left or left[0]["error"]:
            return none
        best = left[0]
        return (
            f"{none}; best: {best['fleet']} with {100 * best['met']:.4g} % of "
            f"{best['requests']:,} requests ({why(best)})"
        )
    best = fleets[0]
    said = [
        f"answer: {best['fleet']}, {best['usd_per_hour']:.2f} USD/h, "
        f"{best['usd_per_million_tokens']:.2f} USD a million tokens, "
        f"{100 * best['met']:.2f} % on target (goal: {wanted}, seeds {asked.seeds})"
    ]
    if "serves_load" in best:
        said.append(f"it serves {_left(best)}")
    said.append(f"it {_if_slower(best)}")
    sure = next((one for one in fleets if one.get("serves_if_slower")), None)
    if sure is not None and sure is not best:
        usd = f"{sure['usd_per_hour']:.2f} USD/h"
        said.append(f"cheapest fleet that serves with its chip's error: {sure['fleet']}, {usd}")
    return "; ".join(said)


def _left(fleet: Mapping[str, Any]) -> str:
    """Return the load that a fleet serves and the one at which it breaks, with the bottleneck."""
    if fleet["breaks_at_load"] is None:
        return f"{fleet['serves_load']:g} times the load"
    binds = f" (bottleneck: {fleet['binds']})" if fleet["binds"] else ""
    return (
        f"{fleet['serves_load']:g} times the load and fails at {fleet['breaks_at_load']:g}{binds}"
    )


def _if_slower(fleet: Mapping[str, Any]) -> str:
    """Return the end of a sentence: does the fleet serve if its steps take the error longer?"""
    words = {True: "still serves", False: "does not serve", None: "was not tried, as a node,"}
    longer = f"{100 * fleet['error']:.3g} % longer ({fleet['error_of']})"
    return f"{words[fleet['serves_if_slower']]} if every step takes {longer}"


def _page(
    answer: str, fleets: Sequence[Mapping[str, Any]], shown: Sequence[Mapping[str, Any]]
) -> str:
    """Return the answer as Markdown: fleets, a paragraph on each, and kinds that fail."""
    lines = [f"# {answer[0].upper()}{answer[1:]}"]
    if fleets:
        heads = ("#", "fleet", *COLUMNS)
        lines += ["", f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for k, one in enumerate(fleets, 1):
        lines.append(f"| {k} | {' | '.join(_cells(one))} |")
    for k, one in enumerate(fleets, 1):
        if "error" not in one:
            continue
        left = f"Serves {_left(one)}. " if "serves_load" in one else ""
        slower = _if_slower(one)
        lines += [
            "", f"{k}. {left}{slower[0].upper()}{slower[1:]}.", "", f"    {one['command']}",
        ]  # fmt: skip
    if shown:
        lines += ["", *why_lines(shown)]
    return "\n".join(lines) + "\n"


def _cells(fleet: Mapping[str, Any]) -> tuple[str, ...]:
    energy = fleet["kwh_per_million_tokens_at_most"]
    half = "" if fleet["met_half"] is None else f" ± {100 * fleet['met_half']:.2f}"
    return (
        fleet["fleet"], f"{fleet['usd_per_hour']:.2f}", f"{fleet['usd_per_million_tokens']:.2f}",
        "" if energy is None else f"{energy:.2f}", f"{100 * fleet['met']:.2f}{half}",
        f"{fleet['ttft_p99_s']:.3f}", f"{1e3 * fleet['tpot_p99_s']:.1f}",
    )  # fmt: skip


def _rows(runs: Runs, fleets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    told = {(one["arm"], one["chips"]) for one in fleets}
    keys = dict.fromkeys(key for arm in runs.arms for key in arm.params)
    rows = []
    for trial, point in runs.found.items():
        verdict = point.summary.get("verdict") or {}
        arm = runs.arms[trial.arm]
        ttft, tpot = (point.summary.get(key) or {} for key in ("ttft_s", "tpot_s"))
        rows.append(
            {**{key: str(arm.params[key]) if key in arm.params else None for key in keys},
             "chips": trial.chips, "requests": trial.part, "seed": trial.seed,
             "usd_per_hour": trial.chips * arm.usd_per_hour, "meets": outcome_of(point).meets,
             "met": verdict.get("met"), "binds": verdict.get("binds"),
             "ttft_p99_s": ttft.get("p99"), "tpot_p99_s": tpot.get("p99"),
             "is_whole": trial.part == runs.requests,
             "is_told": trial.part == runs.requests and (trial.arm, trial.chips) in told,
             "run": point.folder.name if point.folder else None, "error": point.error or None}
        )  # fmt: skip
    return rows


def _write(
    run: RunDir, base: RunSetup, runs: Runs, fleets: Sequence[Mapping[str, Any]],
    left: Sequence[Mapping[str, Any]], shown: Sequence[Mapping[str, Any]], answer: str,
) -> None:  # fmt: skip
    rows = _rows(runs, fleets)
    run.write_table("advise", pa.Table.from_pylist(rows))
    run.write_json(
        "answer",
        {"answer": answer, "fleets": list(fleets), "left_out": list(left), "runs": len(rows)},
    )
    run.write_text("answer.md", _page(answer, fleets, shown))
    if base.settings["figures"] is False:
        return
    from experiments.figures.advise import draw_advice
    from experiments.figures.style import look

    caption = (
        f"{answer[0].upper()}{answer[1:]}. Workload {base.settings['workload']['name']}, "
        f"simulated, link variant '{base.serving.link_variant}'. Points: fleets, filled if the "
        "targets were met; rings: fewest chips of a kind that meet them."
    )
    with look():
        run.write_figure("advise", draw_advice(
            rows, caption=caption, title=f"Fleets for {base.settings['workload']['name']}",
        ))  # fmt: skip


def _print(out: Console, fleets: Sequence[Mapping[str, Any]]) -> None:
    table = Table(title="Fleets that serve", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("fleet", overflow="fold")
    for name in (*COLUMNS, "load left"):
        table.add_column(name.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for one in fleets:
        left = f"{one['serves_load']:g}x" if "serves_load" in one else ""
        table.add_row(*_cells(one), left)
    out.print(table)
