"""Public runs under Poisson arrivals: the client's own requests, and how far off ours are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from c2c.errors import DataError
from experiments.measured.open_loop import (
    FIGURES,
    OpenRun,
    open_runs,
    replay_open,
    requests_of,
)
from experiments.measured.rows import OWN, read_folder

RUNS = list(open_runs(read_folder(OWN)["open_loop"]))
# Errors found, rounded up. What the engine's server and client do to a request before its prefill
# is no part of ours, and above saturation it admits by a guess of how long answers will be.
BOUNDS = {
    "ttft_p50_ms": 0.40, "ttft_p99_ms": 0.60, "itl_mean_ms": 0.18, "e2e_p50_ms": 0.14,
    "seconds": 0.045,
}  # fmt: skip


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.rate_rps:g}")
def test_figures_of_public_runs_are_within_what_was_found(run: OpenRun) -> None:
    ours = replay_open(run)
    assert set(ours) == set(FIGURES) == set(BOUNDS)
    for name, bound in BOUNDS.items():
        assert ours[name] == pytest.approx(run.figures[name], rel=bound), name
    shared = replay_open(run, batch="reserved")  # answers stand still less
    for name in ("itl_mean_ms", "e2e_p50_ms", "seconds"):
        assert shared[name] < ours[name] < run.figures[name], name


def test_requests_are_those_of_the_client_and_no_others() -> None:
    loads = [run.rate_rps for run in RUNS]
    assert loads == sorted(loads)
    for run in RUNS:
        block = requests_of(run)
        assert int(block.prompt_tokens.sum()) == run.prompt_tokens
        assert block.output_tokens.min() == 1
        assert np.diff(block.arrival_s).mean() == pytest.approx(1.0 / run.rate_rps, rel=0.1)
        # arrivals end before the run does, as nobody answers what is not asked
        assert block.arrival_s[-1] < run.figures["seconds"]
        with pytest.raises(DataError, match="but seed 2 draws"):
            requests_of(replace(run, seed=2))
