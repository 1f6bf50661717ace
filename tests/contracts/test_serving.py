"""Rights and duties of every backend: all systems, on any backend."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from c2c.serving import FAIL_CANCELLED, FAIL_DEADLINE, FAIL_NONE
from c2c.serving.tables.port import DeviceLost
from c2c.workloads import OF_MODEL
from tests.contracts.recorded import Recorded
from tests.contracts.systems import EACH, FLEETS, in_turn, models, prepared
from tests.contracts.watching import serve
from tests.simulator.worlds import in_both_forms, random_requests, simulate

# An example takes a second: as it was drawn it is small enough.
AS_DRAWN = (Phase.explicit, Phase.reuse, Phase.generate)

seeds = st.integers(0, 2**31)
loads = st.tuples(st.integers(1, 24), st.sampled_from([0.5, 4.0, 2000.0]), seeds)


@pytest.mark.parametrize(("system", "fleet"), in_turn(0))
@settings(max_examples=2, deadline=None, phases=AS_DRAWN)
@given(load=loads)
def test_the_simulator_gives_the_same_records_compiled_interpreted_and_over_the_port(
    system: str, fleet: str, load: tuple[int, float, int]
) -> None:
    _hold_laws(system, fleet, load)


@settings(max_examples=6, deadline=None, phases=AS_DRAWN)
@given(
    names=st.sets(st.sampled_from(["streamed", "kept", "turns", "restored", "apart"])),
    fleet=st.sampled_from(sorted(FLEETS)),
    load=loads,
)
def test_any_set_of_mechanisms_that_works_holds_the_same_laws(
    names: set[str], fleet: str, load: tuple[int, float, int]
) -> None:
    if names & {"kept", "turns"}:
        names.add("streamed")
    _hold_laws(f"composed=[{','.join(sorted(names))}]", fleet, load)


def _hold_laws(system: str, fleet: str, load: tuple[int, float, int]) -> None:
    """Hold that records are the same in each form, and what is moved what was asked for."""
    n, rate, seed = load
    what, block = prepared(system, fleet), random_requests(n, models(system), rate, seed)
    over_port, state, _ = serve(what, Recorded(what, block))
    records, stats, simulation = in_both_forms(what, block, timeline_rows=100_000)
    assert over_port.tobytes() == records.tobytes()
    # what was done is what was asked
    served = over_port[over_port.failure == FAIL_NONE]
    again = int(stats.prefill_tokens.sum() - served.prompt_tokens.sum())
    assert again == 0 if stats.preempted == 0 else again >= 0
    made = stats.decode_tokens.sum() - (served.output_tokens - 1).sum()
    assert -stats.preempted <= made <= 0  # a prompt that is computed again gives a token, too
    assert state.count[0].switches == stats.switches
    # bytes: what requests are charged is what steps moved, which is what the link carried
    phases = simulation.timeline()
    loaded = float(simulation.machine.load_link_bytes[phases.model[phases.is_load == 1], 0].sum())
    moved = float(stats.instance_link_bytes.sum())
    assert over_port.link_bytes.sum() + loaded == pytest.approx(moved, rel=1e-9)
    # `chip_link_bytes` integrates the granted rates; attention that grows within a run of decode
    # steps makes the real rate fall slightly below the granted one
    assert moved <= stats.chip_link_bytes.sum() * (1 + 1e-9)
    assert moved >= stats.chip_link_bytes.sum() * 0.97
    assert (stats.chip_peak_gbps <= stats.link_capacity_gbps * (1 + 1e-9)).all()


@pytest.mark.parametrize("system", EACH)
@settings(max_examples=2, deadline=None, phases=AS_DRAWN)
@given(
    load=st.tuples(st.integers(1, 10), st.sampled_from([0.5, 2000.0]), seeds),
    slack=st.integers(1, 50),
)
def test_a_loose_bound_on_the_output_changes_nothing_where_memory_is_not_short(
    system: str, load: tuple[int, float, int], slack: int
) -> None:
    n, rate, seed = load
    block = random_requests(n, models(system), rate, seed)
    what = prepared(system, "roomy")
    loose, _, _ = simulate(what, replace(block, max_output_tokens=block.output_tokens + slack))
    exact, _, _ = simulate(what, block)
    names, tolerance = exact.dtype.names, 1e-9
    if what.rules.traits.turn.takes_turns:  # by seconds in which reserved tokens count
        names, tolerance = ("failure", "output_tokens", "first_token_s", "finished_s"), 1e-2
    for name in names:
        np.testing.assert_allclose(loose[name], exact[name], rtol=tolerance, err_msg=name)


@pytest.mark.parametrize(("system", "fleet"), in_turn(1))
@settings(max_examples=2, deadline=None, phases=AS_DRAWN)
@given(load=loads, slack=st.integers(0, 50), lost=st.integers(0, 14))
def test_the_simulator_takes_incidents(
    system: str, fleet: str, load: tuple[int, float, int], slack: int, lost: int
) -> None:
    n, rate, seed = load
    g = np.random.default_rng(seed)
    block = random_requests(n, models(system), rate, seed)
    end_s = float(block.arrival_s[-1]) + 1.0
    leaves = g.random(n) < 0.2
    what = prepared(system, fleet)
    devices = len(what.kind_of)
    losses = [
        DeviceLost(at_s=float(g.uniform(0.0, end_s)), device=int(d))
        for d in g.permutation(devices)[:lost]
    ]
    wishes = replace(
        block,
        max_output_tokens=block.output_tokens + slack,
        deadline_s=np.where(g.random(n) < 0.3, g.exponential(3.0, n) + 1e-3, np.inf),
        cancel_s=np.where(leaves, g.exponential(2.0, n), np.inf),
        priority=np.where(g.random(n) < 0.5, g.integers(0, 3, n), OF_MODEL),
    )
    incidents = sorted(losses, key=lambda i: i.at_s)
    records, _, _ = serve(what, Recorded(what, wishes, incidents=incidents))
    for is_compiled in (False, True):
        direct, _, _ = simulate(what, wishes, compiled=is_compiled, incidents=incidents)
        assert direct.tobytes() == records.tobytes()
    served = records[records.failure == FAIL_NONE]
    assert (served.output_tokens == block.output_tokens[served.id]).all()
    cancelled = set(records.id[records.failure == FAIL_CANCELLED].tolist())
    assert cancelled <= {*np.flatnonzero(leaves).tolist()}
    late = records[records.failure == FAIL_DEADLINE]
    assert (late.output_tokens < block.output_tokens[late.id] + slack).all()
