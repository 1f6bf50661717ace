"""Fit the costs of steps on this machine to live runs: `c2c calibrate engine run=runs/a`.

    c2c calibrate engine run=[runs/a1,runs/a2] to=cpu_mine.yaml
    c2c replay run=runs/b fit=[cpu_mine.yaml]

The file has, for each model, the seconds of its steps, between them and of a load, and the
machine's deviation in each ten seconds. A machine that deviated by more than `drift`, or was used
by others by more than `others`, is refused. Its costs would not be repeatable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.plain_settings import run_settings

__all__ = ["CalibrateSettings", "main"]


@dataclass
class CalibrateSettings:
    """Settings as key=value on the command line.

    Attributes:
      run: folder of a live run's record, or a list of them.
      to: file to write; default steps.yaml in the first run's folder.
      drift: most relative deviation from the fit in any ten seconds.
      others: most use of the cores by other processes in any ten seconds.
    """

    run: Any = ""
    to: str = ""
    drift: float = 0.03
    others: float = 0.02


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    return run_settings(CalibrateSettings, arguments, calibrate)


def calibrate(settings: CalibrateSettings) -> None:
    """Fit step costs, check the machine and write the file."""
    from c2c.errors import SettingError
    from experiments.serving.drift import drift_of
    from experiments.serving.live_run_simulation import fitted, recorded_steps
    from experiments.serving.machine import read_machine
    from experiments.serving.steps_file import write_steps

    names = list(settings.run) if isinstance(settings.run, list) else [settings.run]
    runs = [Path(str(name)).expanduser() for name in names]
    if not runs:
        raise SettingError("run", [], "the folder of a live run's record, or a list of them")
    for name, run in zip(names, runs, strict=True):
        if not name or not run.is_dir():
            raise SettingError("run", name, "the folder of a live run's record, or a list of them")
    for name in ("drift", "others"):
        if not getattr(settings, name) >= 0:
            raise SettingError(name, getattr(settings, name), "a share from 0")
    fits = fitted(runs)
    machines = [read_machine(run) for run in runs]
    drifts = [drift_of(recorded_steps(run), fits) for run in runs]
    for run, drift, machine in zip(runs, drifts, machines, strict=True):
        others = max(machine.others, default=0.0)
        for name, error, most in (
            ("drift", drift.worst, settings.drift), ("others", others, settings.others),
        ):  # fmt: skip
            if error > most:
                raise SettingError(
                    name, most, f"at least {error:.3f}, the worst ten seconds of {run}",
                    "Measure on an idle machine, or raise the limit.",
                )  # fmt: skip
    to = Path(settings.to).expanduser() if settings.to else runs[0] / "steps.yaml"
    write_steps(
        to,
        fits,
        {
            "cpu": machines[0].cpu,
            "cores": machines[0].cores,
            "runs": [
                {"run": run.name, "drift": asdict(drift), "others": max(m.others, default=None)}
                for run, drift, m in zip(runs, drifts, machines, strict=True)
            ],
        },
    )
    worst = max(fit.residual for fit in fits.values())
    print(
        f"{to}: {len(fits)} models, {sum(fit.steps for fit in fits.values())} steps; "
        f"decode steps deviate from the fit by {100 * worst:.0f} % (standard deviation), "
        f"windows of ten seconds by up to {100 * max(d.worst for d in drifts):.1f} %"
    )
