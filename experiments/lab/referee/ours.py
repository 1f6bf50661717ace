"""This simulator: `python -m experiments.lab.referee.ours <scenario> <trace> <result>`."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from experiments.lab.referee.process import timed
from experiments.lab.referee.scenario import BLOCK_TOKENS, SCENARIOS, Ran, Requests, Scenario

__all__ = ["NAME", "refuses", "run"]

NAME: Final = "c2c"


def refuses(scenario: Scenario) -> str:
    """Return no reason: it runs all."""
    del scenario  # runs all
    return ""


def run(scenario: Scenario, requests: Requests, trace: Path, *, limit_s: float) -> Ran:
    """Run the scenario in a process of its own."""
    del requests  # they are in the trace
    result = trace.with_suffix(".ours.npy")
    command = [sys.executable, "-m", "experiments.lab.referee.ours", scenario.name, trace, result]
    cpu_s, wall_s, _ = timed(NAME, command, limit_s=limit_s)
    ttft_s, end_s = np.load(result)
    version = importlib.metadata.version("c2c")
    return Ran(ttft_s, end_s, cpu_s, wall_s, f"c2c {version}")


def main(arguments: list[str]) -> int:
    """Simulate a scenario; write the times to first and last token."""
    from c2c.config import build, load
    from c2c.serving import FAIL_NONE, prepare
    from c2c.simulator import simulate_in_memory
    from experiments.lab.referee.case import TokenBudget

    name, trace, result = arguments
    scenario = next(one for one in SCENARIOS if one.name == name)
    overrides = [
        f"hardware={scenario.chip}", "workload=file", f"workload.path={json.dumps(trace)}",
        "workload.format=mooncake", f"workload.block_tokens={BLOCK_TOKENS}",
        "system.check_slo=false", f"superchips={scenario.gpus}",
        f"tensor_parallel={scenario.gpus}",
    ]  # fmt: skip
    if scenario.settings:
        setup = build(load([*overrides, *scenario.settings]))
        serving = setup.serving
    else:
        setup = build(load([
            *overrides, "catalog=dense", f"catalog.models=[{{spec: {scenario.model}}}]",
            "system=serverlessllm", "system.starts_active=true",
            f"system.profile.chunks=[{scenario.tokens}]",
            f"system.max_batch={scenario.sequences}",
            f"system.prefix_cache.hbm={str(scenario.shared_tokens > 0).lower()}",
        ]))  # fmt: skip
        budget = TokenBudget(scenario.tokens)
        serving = replace(setup.serving, system=replace(setup.serving.system, chunk=budget))
    if scenario.step_s is not None:
        times = {scenario.model: {"step_s": scenario.step_s}}
        serving = replace(serving, system=replace(serving.system, step_times=times))
    prepared = prepare(serving)
    records = simulate_in_memory(prepared, setup.workload).records
    records = records[np.argsort(records.id)]
    served = records.failure == FAIL_NONE
    ttft_s = np.where(served, records.first_token_s - records.arrival_s, np.nan)
    end_s = np.where(served, records.finished_s - records.arrival_s, np.nan)
    np.save(result, np.stack([ttft_s, end_s]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
