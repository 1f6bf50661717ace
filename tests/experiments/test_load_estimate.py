"""The load that is said before a run, against what runs in overload and below it come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c2c.config import RunSetup, build, load, simulate
from experiments.simulation.load import Load, estimate_load
from experiments.simulation.point import simulate_alone
from tests.tiers import tiered

WITHIN = 2.0  # the factor that `estimate_load` and docs/simulator.md state
CASES = [
    "system=c2cserve",
    "system=serverlessllm",
    "system=aegaeon",
    "system=mig_resident superchips=2 hardware=h100_sxm",
    "system=pd",
    "system=c2cserve_letter catalog=dense16 superchips=2",
    "system=moe_infinity_code catalog=moe",
    "system=finemoe_hybrid catalog=moe hardware=h100_sxm",
]


def with_rate(case: str, rate: float, requests: int) -> RunSetup:
    return build(
        load([*case.split(), "workload=poisson", f"workload.rate_rps={rate}", "figures=false",
              f"workload.requests={requests}"])
    )  # fmt: skip


def ends_rps(setup: RunSetup) -> float:
    """Return the rate at which the middle of a run's requests end."""
    ends = np.sort(simulate(setup, compiled=True).requests["finished_s"].to_numpy())
    first, last = len(ends) // 5, 4 * len(ends) // 5
    return float((last - first) / (ends[last] - ends[first]))


@pytest.mark.parametrize("case", tiered(CASES, CASES[0], CASES[6]))
def test_a_fleet_in_overload_serves_what_was_estimated(case: str) -> None:
    found = estimate_load(with_rate(case, 1.0, 10_000))
    assert found is not None
    assert found.times == pytest.approx(1.0 / found.served_rps, rel=0.05)
    over = ends_rps(with_rate(case, 3.0 * found.served_rps, 3 * found.tried))
    assert found.served_rps / WITHIN < over < found.served_rps * WITHIN
    keeps_up = ends_rps(with_rate(case, 0.5 * found.served_rps, 3 * found.tried))
    assert keeps_up == pytest.approx(0.5 * found.served_rps, rel=0.15)


def test_twice_the_chips_serve_twice_as_much_and_an_estimate_changes_no_run() -> None:
    one, two = (with_rate(f"system=c2cserve superchips={n}", 2.0, 4000) for n in (1, 2))
    before = simulate(one, compiled=True).requests
    served = [estimate_load(setup) for setup in (one, two)]
    assert served[0] is not None
    assert served[1] is not None
    assert served[1].served_rps == pytest.approx(2.0 * served[0].served_rps, rel=0.2)
    assert simulate(one, compiled=True).requests.equals(before)


def test_a_closed_loop_has_no_load() -> None:
    assert estimate_load(build(load(["workload=closed_loop", "workload.requests=200"]))) is None


def test_words_are_of_a_share_below_one_and_of_times_above() -> None:
    below, above = (Load(asked_rps=r, served_rps=4.0, tried=100) for r in (1.0, 12.0))
    assert below.line().endswith("the fleet serves 4: 25%")
    assert "the fleet serves 4: 3 times" in above.line()


def test_an_overload_is_said_before_the_run(tmp_path: Path, capsys: Any) -> None:
    simulate_alone(
        load(["system=moe_infinity_code", "catalog=moe", "workload=poisson", "figures=false",
              "workload.requests=400", f"folder={tmp_path / 'run'}"])
    )  # fmt: skip
    said = capsys.readouterr().out
    assert 0 < said.index("load (estimate") < said.index("TTFT in s")
    assert "times its capacity; queues grow" in said
