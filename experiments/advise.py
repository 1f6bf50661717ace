"""Find the cheapest fleets that serve a workload within its targets: chips, layouts, systems.

    c2c advise workload=file workload.path=my.csv catalog=mine slo.ttft_s=1
    c2c advise workload=poisson workload.rate_rps=4 hardware=gh200,h100_sxm
    c2c advise system=c2cserve_plus,aegaeon mig=7x12gb system.max_batch=32,64

Settings are those of `c2c simulate`; a sweep (a,b or range(1,9)) is compared, a single value is
fixed. By default every chip with a price, its layouts of equal slices, and `advise.systems` are
compared. A fleet serves if `slo.attainment` of the requests meet both targets and no queue grows
without end. Kinds of fleets race over a sixteenth, a quarter and all the requests. Of fleets of
one price, the first serves with the cost model's error, and has most load left.

    advise.systems=[...]    systems; default c2cserve_plus, c2cserve, serverlessllm_fast, aegaeon
    advise.fleets=[]        fleets of unlike chips, files of conf/fleet
    advise.seeds=[0,1,2]    seeds of the last part, with each of which a fleet must serve
    advise.most=64          most chips of a fleet
    advise.keep=4           fewest kinds that stay in the race
    advise.within=2         highest price, as a multiple of the cheapest
    advise.error=null       longer steps, as a share, with which a fleet should serve; null: each
                            chip's error on held-out measurements
    advise.workers=null     number of processes; null: one a core

Ctrl-C ends in the answer so far (exit status 130); the same command resumes a stopped search. The
answer is a folder in `out=`, or `folder=`: answer.md, answer.json, a table of all runs, a picture,
settings and provenance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa

from c2c.config import RunSetup, build
from c2c.errors import SettingError
from c2c.ranges import Count, In
from c2c.runs import RunDir
from c2c.workloads import doubts
from experiments.answers.advice import advice, advice_page, print_fleets, with_load
from experiments.answers.command import answer_folder, answering, own_settings, refuse_seed
from experiments.answers.fleets import Arm, FleetSpace
from experiments.answers.left_out import left_out, why, why_table
from experiments.answers.points import PointRunner, needs_compiling
from experiments.answers.race import Standing, Trial, parts_of, race
from experiments.answers.ranking import LOADS, MOST_TOLD, add_margins, in_order, serving, told
from experiments.answers.reachable import check_reachable
from experiments.answers.trials import Runs, outcome_of
from experiments.answers.watch import Watch
from experiments.children import workers_of
from experiments.near_runs import borrowed, error_line
from experiments.simulation.execute import CODE
from experiments.simulation.report import console

__all__ = ["AdviseSettings", "main"]

OUT = "runs/advise"
PACKAGES = (*CODE, "experiments.answers", "experiments.figures.advise")
NAMES = ("advise.parquet", "answer.json", "answer.md", "advise.png", "advise.svg")
# CPU-seconds of a run, and more for each request; of the start; of compiling the event loop.
RUN_S, REQUEST_S, START_S, COMPILING_S = 0.12, 5e-5, 8.0, 25.0

_MARGIN_RUNS = 1 + math.ceil(math.log2(len(LOADS)))  # with one seed


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
    """Run the command; return 1 if no fleet serves, 2 for invalid settings."""
    return answering(_advise, arguments, str(__doc__), sweep="")


def _advise(arguments: list[str], folder: str | None) -> int:
    for old in (a for a in arguments if a.startswith("search.")):
        raise SettingError(
            old.partition("=")[0], old.partition("=")[2], "a setting of group advise"
        )
    options, overrides = own_settings(AdviseSettings, "advise", arguments)
    if not options.systems or len(set(options.systems)) < len(options.systems):
        raise SettingError("advise.systems", options.systems, "at least one name, each once")
    workers = workers_of(options.workers, "advise.workers")
    refuse_seed("advise", options.seeds, overrides)
    space = FleetSpace(
        [f"out={OUT}", *overrides], folder, systems=options.systems, fleets=options.fleets
    )
    arms = space.arms()
    base = _first_that_builds(space, arms, options.seeds[0])
    if not any(key.startswith(("workload", "catalog", "slo")) for key in space.open):
        check_reachable(base)
    with answer_folder(
        "advise", options, base, (base.settings["workload"]["name"],), packages=PACKAGES,
        files=NAMES, fleets=[arm.name for arm in arms],
    ) as (run, where, before):  # fmt: skip
        if before:
            print(f"{before['answer']}\nalready answered: {where}")
            return int(not before["fleets"])
        return _answered(_Question(options, space, arms, base, overrides, workers), run, where)


@dataclass(frozen=True, slots=True)
class _Question:
    asked: AdviseSettings
    space: FleetSpace
    arms: list[Arm]
    base: RunSetup
    given: list[str]
    workers: int

    @property
    def requests(self) -> int:
        return int(self.base.workload.description["requests"])

    @property
    def goal(self) -> float:
        return float(self.base.settings["slo"]["attainment"])

    @property
    def named(self) -> dict[str, list[int]]:
        return self.space.asked(self.arms)


def _answered(question: _Question, run: RunDir, where: Path) -> int:
    out = console()
    standings: dict[int, Standing] = {}
    _open(question, out.print)
    root = Path(question.base.settings["out"]).expanduser() / "points"
    watch = Watch(lambda running: _rest(question, standings, running),
                  lambda: _best_so_far(question, standings))  # fmt: skip
    runs = Runs(
        question.space, question.arms,
        {"out": str(root), "folder": None, "overwrite": False, "figures": False,
         "timeline.rows": 0, "objective": None},
        question.requests, question.asked.seeds, PointRunner(question.workers), watch,
        alone_first=needs_compiling(question.base),
    )  # fmt: skip
    fleets: list[dict[str, Any]] = []
    try:
        with watch, runs.runner:
            _race(question, runs, standings)
            fleets = serving(runs, standings, question.requests, question.given)
            searched = told(fleets, question.named)
            most = watch.asked + _MARGIN_RUNS * len(searched)
            watch.rest = lambda _: most - watch.asked
            add_margins(runs, searched, question.base, question.asked.error)
    except KeyboardInterrupt:
        _tell_partial(question, runs, standings, fleets)
        raise
    return _end(question, run, where, runs, standings, in_order(fleets))


def _open(question: _Question, say: Callable[..., object]) -> None:
    arms, base, plain = question.arms, question.base, {"markup": False, "highlight": False}
    chips, systems = (
        list(dict.fromkeys(getattr(arm, name) for arm in arms if getattr(arm, name)))
        for name in ("chip", "system")
    )
    runs = round(_rest(question, {}, 0))
    seconds = START_S + runs * (RUN_S + REQUEST_S * question.requests) / question.workers
    seconds += COMPILING_S if needs_compiling(base) else 0.0
    models = len(base.serving.deployments)
    say(
        f"{question.requests:,} requests of {base.workload.description['name']} for {models} "
        f"model{'s'[: models > 1]}; goal: {100 * question.goal:g} % on target",
        **plain,
    )
    for line in doubts(base.workload):
        say(line, style="bold", markup=False)
    layouts = len({(arm.chip, arm.layout) for arm in arms})
    say(
        f"comparing {len(arms)} kinds of fleets: {len(chips)} chips ({', '.join(chips)}) with "
        f"{layouts} layouts, {len(systems)} systems ({', '.join(systems)})",
        **plain,
    )
    say(
        f"about {runs} runs in {question.workers} processes, {_duration(seconds)} on quiet cores; "
        "Ctrl-C gives the answer so far",
        **plain,
    )
    if unpriced := question.space.unpriced:
        say(
            f"not compared, as conf/hardware has no price: {', '.join(unpriced)}; "
            f"hardware={unpriced[0]} +hardware.gpu.usd_per_hour=<US dollars> sets one",
            **plain,
        )


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"about {10 * math.ceil(seconds / 10)} s"
    return f"about {math.ceil(seconds / 60)} minutes"


def _race(question: _Question, runs: Runs, standings: dict[int, Standing]) -> None:
    options, requests = question.asked, question.requests
    may_miss = requests if "slo.attainment" in question.space.open else (
        (1.0 - question.goal) * requests
    )  # fmt: skip
    race(
        question.arms, parts_of(requests), runs.serve, seeds=options.seeds, most=options.most,
        keep=options.keep, within=options.within, named=list(question.named.values()),
        may_miss=may_miss, standings=standings,
    )  # fmt: skip


def _rest(question: _Question, standings: Mapping[int, Standing], running: int) -> float:
    parts, kinds = parts_of(question.requests), len(question.arms)
    part = max((one.part for one in standings.values()), default=parts[0])
    here = [one for one in standings.values() if one.part == part]
    open_runs = max(0, sum(not one.is_settled for one in here) - running) if here else kinds
    later = parts[parts.index(part) + 1 :]
    open_runs += sum(min(kinds, max(question.asked.keep, kinds // 4)) for _ in later)
    return open_runs + _MARGIN_RUNS * min(kinds, 1.5 * MOST_TOLD)


def _best_so_far(question: _Question, standings: Mapping[int, Standing]) -> str:
    serve = [(-one.part, one.serves * question.arms[arm].usd_per_hour, arm)
             for arm, one in standings.items() if one.serves < math.inf]  # fmt: skip
    if not serve:
        return "best so far: none serves yet"
    part, usd, arm = min(serve)
    note = "" if -part == question.requests else f" (on the first {-part:,} requests)"
    spoken = question.arms[arm].spoken(int(standings[arm].serves))
    return f"best so far: {usd:.2f} USD/h, {spoken}{note}"


def _tell_partial(
    question: _Question, runs: Runs, standings: Mapping[int, Standing],
    fleets: Sequence[dict[str, Any]],
) -> None:  # fmt: skip
    part = max((one.part for one in standings.values() if one.serves < math.inf), default=0)
    rows = in_order(fleets) or serving(runs, standings, part, question.given)
    out, partial = console(), f"partial answer after {runs.watch.done} runs"
    if not rows:
        out.print(f"{partial}: none yet, no fleet has served", markup=False, style="bold")
        return
    best = rows[0]
    whole = "all" if part == question.requests else f"the first {part:,} of {question.requests:,}"
    out.print(
        f"{partial}: {best['spoken']} for {best['usd_per_hour']:.2f} USD/h is the cheapest fleet "
        f"so far, on {whole} requests; not all kinds have been tried",
        markup=False, style="bold",
    )  # fmt: skip
    print_fleets(out, rows[:MOST_TOLD], [])


def _end(
    question: _Question, run: RunDir, where: Path, runs: Runs,
    standings: Mapping[int, Standing], fleets: list[dict[str, Any]],
) -> int:  # fmt: skip
    out, options, arms = console(), question.asked, question.arms
    served = {one["arm"] for one in fleets}
    rejects = left_out(arms, standings, runs.found, served)
    failing = [
        next(row for row in rejects if row["arm"] in mine)
        for mine in question.named.values() if fleets and served.isdisjoint(mine)
    ]  # fmt: skip
    if fleets:
        fleets[0] |= _measured(runs, fleets[0])
    answer = advice(fleets, rejects, kinds=len(arms), most=options.most, goal=question.goal)
    picture = _write(question, run, runs, fleets, rejects, failing if fleets else rejects, answer)
    if refused := _refused(runs):
        out.print(f"{len(refused)} of {len(arms)} kinds are invalid; first error: {refused[0]}",
                  markup=False)  # fmt: skip
    if runs.seedless and len(options.seeds) > 1:
        out.print("seeds: equal runs, as nothing in them is drawn; one run each")
    out.print(f"\n{answer}\n", markup=False, style="bold")
    if fleets:
        shown = told(fleets, question.named)
        print_fleets(out, shown, failing)
        if len(fleets) > len(shown):
            out.print(f"more fleets that serve, in answer.md: {len(fleets) - len(shown)}")
        for row in failing:
            out.print(f"{row['chip']} does not serve: {why(row)}", markup=False)
    else:
        out.print(why_table(rejects[:MOST_TOLD]))
        if len(rejects) > MOST_TOLD:
            out.print(f"more kinds, in answer.md: {len(rejects) - MOST_TOLD}")
    if fleets:
        for line in (f"error: {fleets[0]['measured']}", *fleets[0]["borrowed"]):
            out.print(line, markup=False, highlight=False)
        print(f"replay: {fleets[0]['command']}")
    print(f"picture: {where / picture}" if picture else "no picture: no run to draw")
    print(f"written: {where}")
    return int(not fleets)


def _measured(runs: Runs, fleet: Mapping[str, Any]) -> dict[str, Any]:
    seed = runs.seeds(fleet["arm"], fleet["chips"])[0]
    trial = Trial(fleet["arm"], fleet["chips"], runs.requests, seed)
    serving = build(runs.settings(trial)).serving
    return {
        "measured": error_line(serving, runs.found[trial].summary),
        "borrowed": list(borrowed(serving)),
    }


def _first_that_builds(space: FleetSpace, arms: Sequence[Arm], seed: int) -> RunSetup:
    wrong: SettingError | None = None
    for chips in (1, 64):
        for arm in arms:
            try:
                return build(space.settings(arm.params, {"superchips": chips, "seed": seed}))
            except SettingError as error:
                wrong = wrong or error
    assert wrong is not None
    raise wrong


def _refused(runs: Runs) -> list[str]:
    by_arm: dict[int, list[str]] = {}
    for trial, point in runs.found.items():
        by_arm.setdefault(trial.arm, []).append(point.error)
    return [f"{runs.arms[arm].name}: {every[0]}" for arm, every in by_arm.items() if all(every)]


def _rows(runs: Runs, fleets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    fleet_keys = {(one["arm"], one["chips"]) for one in fleets}
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
             "is_told": trial.part == runs.requests and (trial.arm, trial.chips) in fleet_keys,
             "run": point.folder.name if point.folder else None, "error": point.error or None}
        )  # fmt: skip
    return rows


def _write(
    question: _Question, run: RunDir, runs: Runs, fleets: Sequence[dict[str, Any]],
    others: Sequence[Mapping[str, Any]], shown: Sequence[Mapping[str, Any]], answer: str,
) -> str:  # fmt: skip
    rows = _rows(runs, fleets)
    run.write_table("advise", pa.Table.from_pylist(rows))
    run.write_json(
        "answer",
        {"answer": answer, "seeds": question.asked.seeds, "fleets": list(fleets),
         "left_out": list(others), "runs": len(rows)},
    )  # fmt: skip
    run.write_text("answer.md", advice_page(answer, fleets, shown))
    marks: list[Mapping[str, Any]] = [one for one in fleets if "serves_load" in one]
    is_loaded = bool(marks)
    if is_loaded:
        marks += shown  # chips that the command line names, and that do not serve
    if not is_loaded:  # no answer, or a closed loop, which has no load: the attainment
        every = [*fleets, *(row for row in others if row["requests"] and not row["error"])]
        most = max((one["requests"] for one in every), default=0)
        marks = [one for one in every if one["requests"] == most]
    if not marks or question.base.settings["figures"] is False:
        return ""
    from experiments.figures.advise import draw_advice
    from experiments.figures.style import look

    base, best = question.base, marks[0]
    few = f", on the first {best['requests']:,}" if best["requests"] < question.requests else ""
    intro = (
        "Each dot is a fleet that serves, at the largest multiple of the load that it still "
        "served; fleets at one place are side by side"
        if is_loaded else "Each dot is a fleet"
    )  # fmt: skip
    caption = (
        f"{intro}. Workload {base.settings['workload']['name']}, {question.requests:,} requests"
        f"{few}, goal {100 * question.goal:g} % on target; list prices; simulated, link variant "
        f"'{base.serving.link_variant}'."
    )
    with look():
        run.write_figure("advise", draw_advice(
            marks, loads=LOADS if is_loaded else (), goal=None if is_loaded else question.goal,
            title=_title(question, fleets, marks), caption=caption,
        ))  # fmt: skip
    return "advise.png"


def _title(
    question: _Question, fleets: Sequence[Mapping[str, Any]], marks: Sequence[Mapping[str, Any]]
) -> str:
    if not fleets:
        best = max(marks, key=lambda one: one["met"])
        return (
            f"No fleet of up to {question.asked.most} chips has {100 * question.goal:g} % on "
            f"target; the best has {100 * best['met']:.1f} %"
        )
    best = fleets[0]
    cheapest = f"{best['chips']} x {best['chip']} at {best['usd_per_hour']:.2f} USD/h is cheapest"
    return (
        f"{cheapest} and serves {with_load(best).replace('>= ', 'at least ')} the load"
        if with_load(best)
        else cheapest
    )
