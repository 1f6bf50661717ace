"""Simulation of a live run's requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from c2c.cost import load_constants
from c2c.engine import Options, find_models, fleet_of
from c2c.errors import DataError
from c2c.serving import Prepared
from c2c.simulator import Machine, Simulation, build_machine, requests_table
from experiments.serving.calibration import StepFit, fit_steps
from experiments.serving.inputs import Inputs, inputs_from
from experiments.serving.record import CATALOG, INPUTS, REQUESTS, SETTINGS, STEPS
from experiments.serving.settings import is_over_several, options_of, system_of

__all__ = [
    "Comparison",
    "compare",
    "fitted",
    "inputs_of",
    "prepared_of",
    "recorded_steps",
    "records_of",
    "replay",
    "served_requests",
]

_SHARES = (50, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A latency's percentile, live and simulated, seconds.

    `floor`: spread over equal live runs, largest / smallest - 1, or None.
    """

    name: str
    share: int
    live_s: float
    simulated_s: float
    floor: float | None = None

    @property
    def error(self) -> float:
        """Relative error, simulated / live - 1."""
        return self.simulated_s / self.live_s - 1.0


def fitted(runs: Sequence[Path]) -> dict[str, StepFit]:
    """Return step costs by model, fitted to these runs."""
    return fit_steps([_table(run / STEPS) for run in runs])


def prepared_of(run: Path) -> tuple[Prepared, Options]:
    """Return a run's loop setup, and workers' options."""
    try:
        settings = json.loads((run / SETTINGS).read_text("utf-8"))
        listed = json.loads((run / CATALOG).read_text("utf-8"))["models"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(str(run), f"no record of a live run ({error})") from None
    entries = [
        replace(entry, name=model["name"])
        for model in listed
        for entry in find_models(Path(model["path"]))
    ]
    for entry in entries:
        if entry.failed:
            raise DataError(str(entry.path), entry.failed)
    options = options_of(settings)
    constants = load_constants(settings["constants"])
    if is_over_several(settings):
        raise DataError(str(run), "a worker had several devices, whose steps are not fitted")
    prepared = fleet_of(
        entries,
        options,
        system_of(settings["system"]),
        constants,
        slo_s=(settings["ttft_slo_s"], settings["tpot_slo_s"]),
    )
    return prepared, options


def served_requests(run: Path) -> pa.Table:
    """Return a run's finished requests, by arrival."""
    table = _table(run / REQUESTS)
    table = table.filter(pa.array(np.asarray(table["status"].to_pylist()) == "finished"))
    if not len(table):
        raise DataError(str(run / REQUESTS), "no request was finished")
    return table.take(np.argsort(table["arrival_s"].to_numpy(), kind="stable"))


def recorded_steps(run: Path) -> pa.Table:
    """Return a run's steps and loads, as reported."""
    return _table(run / STEPS)


def inputs_of(run: Path, prepared: Prepared) -> Inputs:
    """Return the inputs of a run's engine."""
    names = [d.name for d in prepared.setup.deployments]
    return inputs_from(_table(run / INPUTS), _table(run / REQUESTS), names)


def replay(
    prepared: Prepared, inputs: Inputs, fits: Mapping[str, StepFit] | None = None
) -> pa.Table:
    """Simulate a live run's inputs; return finished requests' records, by arrival."""
    model_fits = [None if fits is None else fits[d.name] for d in prepared.setup.deployments]
    load_s = np.array([0.0 if fit is None else fit.load_s for fit in model_fits])
    cold_s = np.array([0.0 if fit is None else fit.cold_load_s for fit in model_fits])
    turns = [fit for fit in model_fits if fit is not None and fit.turns]
    machine = build_machine(prepared)
    machine = machine._replace(
        load_s=np.repeat(load_s[:, None], len(machine.hbm), axis=1),
        weight_bytes=np.maximum(0.0, cold_s - load_s),
        disk=np.ones_like(machine.disk),  # a byte a second
        cold_init_s=np.zeros_like(machine.cold_init_s),
        turn_s=_turn_s(turns),
    )  # fmt: skip
    return inputs.of_served(records_of(prepared, machine, inputs))


def _turn_s(fits: Sequence[StepFit]) -> float:
    total = sum(fit.turns * (fit.turn_s + fit.turn_outside_s) for fit in fits)
    return total / max(1, sum(fit.turns for fit in fits))


def records_of(prepared: Prepared, machine: Machine, inputs: Inputs) -> pa.Table:
    """Simulate a live run's inputs; return all requests' records, by id."""
    simulation = Simulation.start(prepared, machine, incidents=inputs.others)
    parts: list[np.ndarray] = []
    simulation.feed(inputs.block(), parts.append, is_last=True)
    records = np.sort(np.concatenate(parts), order="id")
    return requests_table(prepared, records.view(np.recarray))


def compare(
    live: pa.Table, simulated: pa.Table, again: Sequence[pa.Table] = ()
) -> list[Comparison]:
    """Return percentiles of TTFT, TPOT and end-to-end time, live and simulated."""
    ours, theirs = _figures(live), _figures(simulated)
    runs = [ours, *map(_figures, again)]
    result = []
    for name in ours:
        for share in _SHARES:
            values = [float(np.percentile(run[name], share)) for run in runs]
            result.append(
                Comparison(
                    name=name,
                    share=share,
                    live_s=values[0],
                    simulated_s=float(np.percentile(theirs[name], share)),
                    floor=max(values) / min(values) - 1.0 if again else None,
                )
            )
    return result


def _figures(table: pa.Table) -> Mapping[str, np.ndarray]:
    c = {
        name: table[name].to_numpy()
        for name in ("arrival_s", "first_token_s", "finished_s", "output_tokens")
    }
    several = c["output_tokens"] > 1
    spread = (c["finished_s"] - c["first_token_s"])[several]
    return {
        "ttft_s": c["first_token_s"] - c["arrival_s"],
        "tpot_s": spread / (c["output_tokens"][several] - 1),
        "e2e_s": c["finished_s"] - c["arrival_s"],
    }


def _table(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(str(path), f"cannot be read ({error})") from None
