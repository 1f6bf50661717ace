"""Static batches that are drained, and the operations' table, against what must hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from c2c.systems.cocoserve import headroom
from experiments.c2cserve.context import Context
from experiments.claims import claim, compare
from experiments.cocoserve import costs
from experiments.cocoserve.drained import DEFAULTS, PEAK, Served, drained

QUICK = Context(profile="quick", link_variant="measured", seeds=(0,))


def test_the_fitted_latency_is_the_printed_one() -> None:
    printed = claim("cocoserve.fig6b.baseline_latency").value
    assert drained(DEFAULTS, PEAK).latency_s == pytest.approx(printed, rel=0.005)


def test_whole_batches_end_one_after_another() -> None:
    """Fifty requests in batches of 15 take four batches, of which the last has five."""
    one, four = (drained(DEFAULTS, n) for n in (15, 60))
    assert 60 / four.throughput_rps == pytest.approx(4 * 15 / one.throughput_rps, rel=0.01)


@pytest.mark.parametrize("layers", [15, 30])
def test_copies_add_rows_by_the_memory_that_they_relieve(layers: int) -> None:
    scaled = Served(layers=layers)
    batch = int(15 * headroom(layers, 0.5, of=40))
    full, more = (drained(scaled, n) for n in (batch, batch + 1))
    assert more.latency_s > full.latency_s * 1.03
    assert (
        drained(replace(scaled, grown_batch="fixed"), PEAK).throughput_rps
        < drained(scaled, PEAK).throughput_rps
    )


def test_memory_of_operations_is_the_printed_one_to_the_mib() -> None:
    found = costs.compute(QUICK).tables["operations"].to_pylist()
    assert len(found) == 10
    assert all(row["memory_mb"] == row["printed_mb"] for row in found)


def test_answers_have_the_shape_of_their_claims() -> None:
    for one in costs.compute(QUICK).results:
        compare(claim(one.claim_id), one)
