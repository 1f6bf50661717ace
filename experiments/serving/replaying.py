"""The requests of a live run once more, simulated: how far apart are the two."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from c2c.cost import load_constants
from c2c.engine import Options, find_models, fleet_of
from c2c.errors import DataError
from c2c.serving import Prepared
from c2c.simulator import Simulation, build_machine, requests_table, run_blocks
from c2c.workloads import RequestBlock
from experiments.serving.calibration import StepFit, fit_steps
from experiments.serving.record import CATALOG, REQUESTS, SETTINGS, STEPS
from experiments.serving.settings import options_of, system_of

__all__ = [
    "Comparison",
    "compare",
    "fitted",
    "prepared_of",
    "recorded_steps",
    "replay",
    "served_requests",
]

_SHARES = (50, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Percentiles of a figure, live and simulated, seconds.

    `floor`: how far apart live runs of the same requests are, largest over least, less one; None:
    there is one run.
    """

    name: str
    share: int
    live_s: float
    simulated_s: float
    floor: float | None = None

    @property
    def error(self) -> float:
        """Simulated over live, less one."""
        return self.simulated_s / self.live_s - 1.0


def fitted(runs: Sequence[Path]) -> dict[str, StepFit]:
    """Return what steps cost in these runs.

    Raises:
      DataError: a run has no record, or too few steps.
    """
    return fit_steps([_table(run / STEPS) for run in runs])


def prepared_of(run: Path) -> tuple[Prepared, Options]:
    """Return the serving loop's setup as a run had it, and how its workers served.

    Raises:
      DataError: the record is damaged, or its checkpoints are gone.
    """
    try:
        given = json.loads((run / SETTINGS).read_text("utf-8"))
        listed = json.loads((run / CATALOG).read_text("utf-8"))["models"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(str(run), f"no record of a live run ({error})") from None
    entries = [entry for model in listed for entry in find_models(Path(model["path"]))]
    for entry in entries:
        if entry.failed:
            raise DataError(str(entry.path), entry.failed)
    options = options_of(given)
    prepared = fleet_of(
        entries,
        options,
        system_of(given["system"]),
        load_constants(given["constants"]),
        slo_s=(given["ttft_slo_s"], given["tpot_slo_s"]),
    )
    return prepared, options


def served_requests(run: Path) -> pa.Table:
    """Return the requests of a run that were served to their end, by arrival.

    Raises:
      DataError: there are none.
    """
    table = _table(run / REQUESTS)
    table = table.filter(pa.array(np.asarray(table["status"].to_pylist()) == "finished"))
    if not len(table):
        raise DataError(str(run / REQUESTS), "no request was served")
    return table.sort_by("arrival_s")


def recorded_steps(run: Path) -> pa.Table:
    """Return the steps and loads of a run, in the order in which they were heard of."""
    return _table(run / STEPS)


def replay(
    prepared: Prepared, requests: pa.Table, load_s: Mapping[str, float] | None = None
) -> pa.Table:
    """Simulate the arrivals of a live run; return the records in the same order.

    Args:
      prepared: of the run, with its step costs.
      requests: as they were served.
      load_s: of a load of each model; None: loads take no time.
    """
    names = [d.name for d in prepared.setup.deployments]
    block = RequestBlock(
        arrival_s=requests["arrival_s"].to_numpy(),
        model=np.array([names.index(n) for n in requests["model"].to_pylist()], np.int32),
        prompt_tokens=requests["prompt_tokens"].to_numpy().astype(np.int32),
        output_tokens=requests["output_tokens"].to_numpy().astype(np.int32),
    )
    machine = build_machine(prepared)
    loads = np.array([0.0 if load_s is None else load_s[name] for name in names])
    machine = machine._replace(load_s=loads, turn_s=0.0)  # a turn's cost is in the steps'
    parts: list[Any] = []
    simulation = Simulation.start(prepared, machine, compiled=False)
    run_blocks(simulation, [block], parts.append)
    records = np.sort(np.concatenate(parts), order="id").view(np.recarray)
    return requests_table(prepared, records)


def compare(
    live: pa.Table, simulated: pa.Table, again: Sequence[pa.Table] = ()
) -> list[Comparison]:
    """Return the percentiles of TTFT, TPOT and end-to-end time of both.

    Args:
      live: what was served.
      simulated: the same requests.
      again: other live runs of them.
    """
    ours, theirs = _figures(live), _figures(simulated)
    runs = [ours, *map(_figures, again)]
    found = []
    for name in ours:
        for share in _SHARES:
            each = [float(np.percentile(run[name], share)) for run in runs]
            found.append(
                Comparison(
                    name=name,
                    share=share,
                    live_s=each[0],
                    simulated_s=float(np.percentile(theirs[name], share)),
                    floor=max(each) / min(each) - 1.0 if again else None,
                )
            )
    return found


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
