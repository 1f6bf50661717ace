"""Vidur with this project's step times (`c2c bench referee`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv

from experiments.lab.referee import vidur_process
from experiments.lab.referee.case import COLUMNS, CONTEXT, DATE, MODEL, PLATFORM, serving
from experiments.lab.referee.process import timed
from experiments.lab.referee.scenario import Ran, Requests, Scenario
from experiments.lab.referee.vidur_costs import GRANULARITY, write_predictions

__all__ = ["NAME", "refuses", "run"]

NAME: Final = "Vidur"
_PYTHON: Final = Path(".venv-peer-simulator/bin/python")


def refuses(scenario: Scenario) -> str:
    """Return why a scenario cannot run, or ""."""
    if scenario.steps != "ours":
        return "its profiles are not in its wheel: it runs with this project's step times only"
    if (scenario.model, scenario.chip) != (MODEL, PLATFORM):
        return f"{MODEL} on {PLATFORM} only"
    if not _PYTHON.is_file():
        return "not installed: make peer-simulator"
    return ""


def run(scenario: Scenario, requests: Requests, trace: Path, *, limit_s: float) -> Ran:
    """Run Vidur once in a process of its own."""
    from c2c.serving import prepare

    folder = trace.with_suffix(".vidur")
    folder.mkdir(exist_ok=True)
    inputs = {
        "chunk": scenario.tokens, "max_batch": scenario.sequences, "date": DATE,
        "trace": str(folder / "trace.csv"), "context": CONTEXT, "granularity": GRANULARITY,
        "folder": str(folder),
    }  # fmt: skip
    values = (requests.arrival_s, requests.prompt, requests.output)
    columns = {"Date": [DATE] * len(requests.prompt)} | dict(zip(COLUMNS, values, strict=True))
    pyarrow.csv.write_csv(pa.table(columns), inputs["trace"])
    setup = serving(scenario.tokens, scenario.sequences)
    ((table,),) = prepare(setup).tables
    write_predictions(
        folder, table, layers=setup.deployments[0].spec.layers, chunk=scenario.tokens,
        max_batch=scenario.sequences, context=CONTEXT,
    )  # fmt: skip
    command = [_PYTHON, vidur_process.__file__, json.dumps(inputs)]
    # It simulates once for each line on its standard input.
    cpu_s, wall_s, answer = timed(NAME, command, limit_s=limit_s, stdin="once\n")
    output = json.loads(answer)
    ttft_s = np.array(output["first_s"])
    return Ran(ttft_s, ttft_s + np.array(output["rest_s"]), cpu_s, wall_s, output["version"])
