"""One run outside a sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from c2c.config import RunSetup, Settings, build, composed
from c2c.runs import progress_bar, storage_error
from c2c.simulator import is_compiled
from experiments.simulation.execute import Outcome, check_disk, code_keys, execute, folder_of
from experiments.simulation.objective import check_objective, known_fields, objective_of
from experiments.simulation.report import (
    console,
    print_doubts,
    print_folder,
    print_outcome,
    print_setup,
    print_verdict,
)
from experiments.stop_signals import told_to_stop

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = [
    "check_shared",
    "objective_setting",
    "show",
    "simulate_alone",
    "simulate_composed",
    "value_of",
]


def simulate_alone(overrides: Sequence[str]) -> None:
    """Simulate the settings of a command line without options."""
    simulate_composed(composed(overrides, code_keys()["c2c"]))


def simulate_composed(cfg: DictConfig | Settings) -> Any:
    """Simulate a configuration outside a sweep, as `simulate_point`."""
    check_shared(cfg)
    check_disk(cfg)
    outcome = show(build(cfg), console(), "all")
    return value_of(outcome, objective_setting(cfg))


def objective_setting(cfg: DictConfig | Settings) -> Any:
    """Return the objective as plain data."""
    setting = cfg["objective"]
    if isinstance(cfg, Settings):
        return setting
    from omegaconf import OmegaConf

    return OmegaConf.to_container(setting) if OmegaConf.is_config(setting) else setting


def check_shared(cfg: DictConfig | Settings) -> None:
    """Raise for a bad objective."""
    check_objective(objective_setting(cfg), known_fields)


def value_of(outcome: Outcome, objective: Any) -> Any:
    """Return and print the objective's value, or None."""
    # A run that served nobody has no objective, whatever the arithmetic makes of zeros.
    value = objective_of(objective, outcome.summary) if outcome.summary["finished"] else None
    if objective is not None:
        print(f"objective {objective}: {value}")
    return value


def show(
    setup: RunSetup, out: Console, shown: Literal["all", "verdict", "none"],
    keys: dict[Path, str] | None = None,
) -> Outcome:  # fmt: skip
    """Run one point; print its settings, and tables when known."""
    with ExitStack() as drawn:
        bars: list[Callable[[float], None]] = []

        def before(compiled: bool) -> None:
            if shown == "all":
                print_setup(out, setup)
            elif shown == "verdict":
                print_doubts(out, setup)
            if compiled and not is_compiled():
                out.print("compiling the event loop, once on this machine: about 20 s ...")
            if shown != "none":
                total = float(setup.workload.description["requests"])
                bars.append(drawn.enter_context(progress_bar("simulating", total)))

        def progress(done: float) -> None:
            if told_to_stop():
                raise KeyboardInterrupt
            for bar in bars:
                bar(done)

        def after(outcome: Outcome) -> None:
            drawn.close()  # remove the bar before the tables are printed
            if shown == "all":
                print_outcome(out, setup, outcome)
            elif shown == "verdict":
                print_verdict(out, outcome)

        try:
            outcome = execute(setup, before=before, on_progress=progress, after=after, keys=keys)
        except OSError as error:
            raise storage_error(error, folder_of(setup)) from error
    print_folder(out, outcome)
    return outcome
