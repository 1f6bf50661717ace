"""The best fleet for a workload under targets: system, MIG layout, prefill chunk, Superchips.

    python -m experiments.search workload=poisson workload.rate_rps=4 slo.ttft_s=1
    python -m experiments.search workload=file workload.path=trace.csv superchips=1,2,4,8
    python -m experiments.search system=c2cserve_plus system.engines.residents=2,4 search.trials=60

Settings are those of `experiments.simulate`. A sweep among them (a,b or range(1,9) or
interval(0.5,2)) is varied, all others are fixed; system, layout, chunk and Superchips are varied
where the command line says nothing of them. Optuna proposes points that are cheap (GPU-hours) and
quick (p99 of TTFT and of TPOT) and meet the targets; the answer is the cheapest, then the quickest.

    search.trials=40          different points to try, those of earlier calls included
    search.layouts=3          layouts a system, the best ones of `mig=planned`
    search.plan_requests=2000 of the workload, to plan the layouts with
    search.systems=[...]      where none is named: c2cserve_plus, c2cserve, serverlessllm_fast
    search.chunks=[...]       own (the system's rule) or tokens: own, 512, 2048
    search.superchips=[...]   where no number is named: 1, 2, 3, 4
    search.seed=0             of the sampler; `seed=` is the workload's
    search.workers=null       processes; null: one a core

Runs are folders in `<out>/points`, the study is a file in `<out>/studies`: the same command goes on
where one was stopped, with more `search.trials` where one ended. The answer is a folder in `out=`,
or `folder=`: a table (Parquet), a figure, answer.json, settings and provenance.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.table import Table

from c2c.config import RunSetup, build
from c2c.errors import SettingError
from c2c.runs import NOT_INPUTS, RunDir, content_key, progress_bar, storage_error
from experiments.answers.command import answering, own_settings
from experiments.answers.fleets import CHUNK, OWN, FleetSpace, planned_layouts
from experiments.answers.points import needs_compiling
from experiments.answers.study import OBJECTIVES, Tried, front_of, open_study, run_trials
from experiments.children import workers_of
from experiments.simulation.execute import CODE
from experiments.simulation.report import console, print_setup

__all__ = ["SearchSettings", "main"]

OUT = "runs/search"
PACKAGES = (*CODE, "experiments.answers", "experiments.figures.search")
NAMES = ("search.parquet", "answer.json", "search.png", "search.svg")
_TOLD = ("attainment_both", "verdict", "binds", "run", "error")


@dataclass
class SearchSettings:
    """Settings of the search, see the module's docstring."""

    trials: int = 40
    layouts: int = 3
    plan_requests: int = 2000
    systems: list[str] = field(
        default_factory=lambda: ["c2cserve_plus", "c2cserve", "serverlessllm_fast"]
    )
    chunks: list[str] = field(default_factory=lambda: [OWN, "512", "2048"])
    superchips: list[int] = field(default_factory=lambda: [1, 2, 3, 4])
    seed: int = 0
    workers: int | None = None

    def check(self) -> None:
        """Raise where a value cannot work."""
        for name in ("trials", "layouts", "plan_requests"):
            if (value := getattr(self, name)) < 1:
                raise SettingError(f"search.{name}", value, "a whole number above 0")
        for name in ("systems", "chunks", "superchips"):
            if not (found := getattr(self, name)) or len(set(found)) < len(found):
                raise SettingError(f"search.{name}", found, "at least one value, each once")
        if wrong := [c for c in self.chunks if c != OWN and not (c.isdigit() and int(c) > 0)]:
            raise SettingError("search.chunks", wrong[0], f"{OWN} or a number of tokens")
        if self.seed < 0:
            raise SettingError("search.seed", self.seed, "a whole number, 0 or more")


def main(arguments: list[str]) -> int:
    """Search; return the exit status: 1 if no point finished a request, 2 for wrong settings."""
    return answering(_search, arguments, str(__doc__), sweep="")


def _search(arguments: list[str], folder: str | None) -> int:
    asked, given = own_settings(SearchSettings, "search", arguments)
    asked.check()
    workers = workers_of(asked.workers, "search.workers")
    space = FleetSpace(
        [f"out={OUT}", *given], folder, systems=asked.systems, chunks=asked.chunks,
        superchips=asked.superchips,
    )  # fmt: skip
    space.check()
    base = build(space.settings(space.first()))
    out = console()
    print_setup(out, base)
    begin_with = _layouts(space, asked)
    told = {
        "command": "search",
        "search": {k: v for k, v in asdict(asked).items() if k not in ("workers", "trials")},
        "space": {name: str(one) for name, one in space.dimensions.items()},
        **{k: v for k, v in base.settings.items() if k not in NOT_INPUTS},
    }
    root = Path(base.settings["out"]).expanduser()
    where = _where(base, told, root)
    # Values that other code or other data gave are no part of the study.
    study_key = content_key(told, packages=PACKAGES, files=base.files)
    more = (
        f"out='{root / 'points'}'", "folder=null", "overwrite=false", "figures=false",
        "timeline.rows=0",
    )  # fmt: skip
    try:
        with RunDir.open(
            where, told | {"trials": asked.trials}, packages=PACKAGES, files=base.files,
            data=("trials",), seed=base.seed, resume=base.settings["resume"],
            overwrite=base.settings["overwrite"], names=NAMES,
            field="folder" if base.settings["folder"] else "out",
        ) as run:  # fmt: skip
            if run.is_complete:
                found = json.loads((where / "answer.json").read_text(encoding="utf-8"))
                print(f"{found['answer']}\nanswered already: {where}")
                return int(not found["with_values"])
            study = open_study(root / "studies" / f"{study_key[:16]}.journal")
            tried: list[Tried] = []
            wanted = float(base.settings["slo"]["attainment"])
            print(f"trying {min(asked.trials, space.size):g} of {space.size:g} points; "
                  f"processes: {workers}")  # fmt: skip
            with progress_bar("points", asked.trials) as advance:

                def on_point(one: Tried) -> None:
                    tried.append(one)
                    advance(len(tried))
                    print(f"  {_line(one)}", flush=True)

                run_trials(
                    study, space, trials=asked.trials, begin_with=begin_with, more=more,
                    wanted=wanted, seed=asked.seed, workers=workers,
                    alone_first=needs_compiling(base), on_point=on_point,
                )  # fmt: skip
            front = front_of(study)
            best = _best([one for one in tried if one.number in front])
            table = _table(space, tried, front)
            answer = _answer(best, wanted, tried)
            _write(run, base, table, best, answer)
    except OSError as error:
        raise storage_error(error, where) from error
    out.print(_front_table(tried, front))
    print(f"{answer}\nwritten: {where} (runs in {root / 'points'})")
    return int(not any(one.values for one in tried))


def _layouts(space: FleetSpace, asked: SearchSettings) -> list[dict[str, Any]]:
    """Plan the layouts of each system, where none is named; return points to begin with."""
    if not space.plans:
        return [space.first() | ({"system": s} if "system" in space.dimensions else {})
                for s in space.systems]  # fmt: skip
    best: dict[str, list[str]] = {}
    for system in space.systems:
        best[system], setup = planned_layouts(
            space, system, count=asked.layouts, requests=asked.plan_requests
        )
        assert setup.plan is not None
        print(f"{system}: mig {', '.join(best[system])} serve the first "
              f"{setup.plan.requests:,} requests best")  # fmt: skip
    space.add_layouts([layout for layouts in best.values() for layout in layouts])
    return [
        space.first() | {"mig": layouts[0]}
        | ({"system": system} if "system" in space.dimensions else {})
        for system, layouts in best.items()
    ]  # fmt: skip


def _best(front: Sequence[Tried]) -> Tried | None:
    """Return the cheapest point of the front, then the quickest."""
    return min(front, key=lambda one: one.values or (), default=None)


def _named(params: Mapping[str, Any]) -> str:
    named = {k: v for k, v in params.items() if not (k == CHUNK and v == OWN)}
    order = [k for k in ("system", "superchips", "mig", CHUNK) if k in named]
    return " ".join(f"{k}={named[k]}" for k in [*order, *(k for k in named if k not in order)])


def _line(one: Tried) -> str:
    name = _named(one.params)
    if one.values is None:
        return f"{name}: {one.told['error'] or 'no request finished'}"
    hours, ttft, tpot = one.values
    return (
        f"{name}: {hours:g} GPU-hours, TTFT p99 {ttft:.3g} s, TPOT p99 {1e3 * tpot:.3g} ms, "
        f"{100 * one.told['attainment_both']:.2f} % on target"
    )


def _answer(best: Tried | None, wanted: float, tried: Sequence[Tried]) -> str:
    if not any(one.values for one in tried):
        return f"answer: none. Of {len(tried)} points that were tried, none finished a request"
    if best is None:
        share = f"{100 * wanted:g} % of the requests on target"
        return f"answer: none. No point that was tried has {share}"
    return f"answer: {_line(best)} ({100 * wanted:g} % wanted)"


def _table(space: FleetSpace, tried: Sequence[Tried], front: set[int]) -> pa.Table:
    rows = []
    for one in sorted(tried, key=lambda t: t.number):
        values = one.values or (None,) * len(OBJECTIVES)
        rows.append(
            {
                "trial": one.number,
                "system": str(one.params.get("system", space.systems[0])),
                **{k: v for k, v in one.params.items() if k != "system"},
                **dict(zip(OBJECTIVES, values, strict=True)),
                "meets": one.meets,
                "on_front": one.number in front,
                **{name: one.told["state" if name == "verdict" else name] for name in _TOLD},
            }
        )
    return pa.Table.from_pylist(rows)


def _front_table(tried: Sequence[Tried], front: set[int]) -> Table:
    table = Table(title="Pareto front", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("point", overflow="fold")
    for name in ("GPU-hours", "TTFT p99 s", "TPOT p99 ms", "SLO %"):
        table.add_column(name, justify="right")
    for one in sorted((t for t in tried if t.number in front), key=lambda t: t.values or ()):
        assert one.values is not None
        hours, ttft, tpot = one.values
        share = 100 * one.told["attainment_both"]
        table.add_row(_named(one.params), f"{hours:g}", f"{ttft:.3f}",
                      f"{1e3 * tpot:.1f}", f"{share:.2f}")  # fmt: skip
    return table


def _write(run: RunDir, base: RunSetup, table: pa.Table, best: Tried | None, answer: str) -> None:
    run.write_table("search", table)
    found = None
    if best is not None:
        found = {"trial": best.number, "params": dict(best.params),
                 **dict(zip(OBJECTIVES, best.values or (), strict=True)), **best.told}  # fmt: skip
    some = table.num_rows - table[OBJECTIVES[0]].null_count
    told = {"answer": answer, "best": found, "points": table.num_rows, "with_values": some}
    run.write_json("answer", told)
    if not base.settings["figures"]:
        return
    from experiments.figures.search import draw_search
    from experiments.figures.style import look

    caption = (
        f"{answer[0].upper()}{answer[1:]}. Workload {base.settings['workload']['name']}, seed "
        f"{base.seed}, simulated, link variant '{base.serving.link_variant}'. A point is a run, "
        "filled if it met the targets; the front is of those that no other beats in all three."
    )
    with look():
        run.write_figure("search", draw_search(
            table, best=None if best is None else best.number, caption=caption,
            title=f"Fleets for {base.settings['workload']['name']} on {base.serving.platform.name}",
        ))  # fmt: skip


def _where(base: RunSetup, told: Mapping[str, Any], root: Path) -> Path:
    if base.settings["folder"]:
        return Path(base.settings["folder"]).expanduser()
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]
    parts = (base.serving.platform.name, base.settings["workload"]["name"], digest)
    return root / "_".join(re.sub(r"[^\w.-]+", "-", part) for part in parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
