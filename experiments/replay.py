"""Simulate a live run's requests and compare: `c2c replay run=runs/live`.

    c2c replay run=runs/b fit=[runs/a1,runs/a2] floor=[runs/b2,runs/b3]

Step costs are fitted to `fit`, by default to the run itself; `floor` gives the spread over live
runs of the same requests. Prints TTFT, TPOT and end-to-end time, and writes them with the fit to
`replay.json` in the run's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from experiments.plain_settings import run_settings

__all__ = ["ReplaySettings", "main"]


@dataclass
class ReplaySettings:
    """Settings as key=value on the command line.

    Attributes:
      run: folder of the live run's record, `out` of `c2c serve`.
      fit: folders of runs, or one file of `c2c calibrate engine`; empty for the run itself.
      floor: folders of further live runs of the same requests.
    """

    run: str = ""
    fit: list[str] = field(default_factory=list)
    floor: list[str] = field(default_factory=list)


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    return run_settings(ReplaySettings, arguments, _replay)


def _replay(settings: ReplaySettings) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from c2c.atomic import write_json
    from c2c.errors import SettingError
    from experiments.serving.calibration import with_costs
    from experiments.serving.drift import drift_of
    from experiments.serving.live_run_simulation import (
        compare,
        fitted,
        inputs_of,
        prepared_of,
        recorded_steps,
        replay,
        served_requests,
    )
    from experiments.serving.recorded_replay import retell
    from experiments.serving.steps_file import read_steps

    folder = Path(settings.run).expanduser()
    if not settings.run or not folder.is_dir():
        raise SettingError("run", settings.run, "the folder of a live run's record")
    others = [Path(name).expanduser() for name in settings.fit]
    from_file = len(others) == 1 and others[0].suffix == ".yaml"
    fits = read_steps(others[0]) if from_file else fitted(others or [folder])
    prepared, options = prepared_of(folder)
    inputs = inputs_of(folder, prepared)
    live = inputs.served
    again = [served_requests(Path(name).expanduser()) for name in settings.floor]
    simulated = replay(with_costs(prepared, fits, options.budgets), inputs, fits)
    comparisons = compare(live, simulated, again)
    out = Console(highlight=False, width=100)
    retold = retell(prepared, inputs, recorded_steps(folder))
    same = compare(live, retold.requests)
    out.print(
        f"with the recorded seconds: {retold.equal} of {retold.plans} plans as recorded, "
        f"latencies within {100 * max(abs(one.error) for one in same):.2f} %"
    )
    table = Table(box=SIMPLE_HEAD, title=f"{len(live)} requests, simulated against live")
    for name in ("figure", "live, ms", "simulated, ms", "error, %", "floor, %"):
        table.add_column(name, justify="left" if name == "figure" else "right")
    for one in comparisons:
        table.add_row(
            f"{one.name.removesuffix('_s')} p{one.share}", f"{1e3 * one.live_s:.2f}",
            f"{1e3 * one.simulated_s:.2f}", f"{100 * one.error:+.1f}",
            "-" if one.floor is None else f"{100 * one.floor:.1f}",
        )  # fmt: skip
    out.print(table)
    worst = max(fit.residual for fit in fits.values())
    drift = drift_of(recorded_steps(folder), fits)
    out.print(
        f"{'fitted to itself: no prediction' if not others else f'fitted to {len(others)} runs'}; "
        f"decode steps deviate from the fit by {100 * worst:.0f} % (standard deviation), "
        f"windows of ten seconds by {100 * drift.usual:.0f} % (median) and "
        f"{100 * drift.worst:.0f} % (worst)"
    )
    write_json(
        folder / "replay.json",
        {
            "fit": [str(path) for path in others],
            "drift": asdict(drift),
            "steps": {name: fit.as_dict() for name, fit in fits.items()},
            "retold": {
                "plans": retold.plans,
                "equal": retold.equal,
                "compared": [asdict(one) for one in same],
            },
            "compared": [asdict(one) for one in comparisons],
        },
    )
