"""Static batches that are drained, and the operations' table, against what must hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from c2c.errors import SettingError
from c2c.systems.cocoserve import headroom
from experiments.claims import claim
from experiments.figure import Computed, Context
from experiments.papers.cocoserve import costs, fig3, fig8, fig9
from experiments.papers.cocoserve.baselines import coco, copied_layers, vllm
from experiments.papers.cocoserve.batch_server import (
    DEFAULTS,
    HIGH,
    LOW,
    PEAK,
    Served,
    drained,
    first_bytes,
    mean_over,
    rows_that_fit,
)
from tests.experiments.duties import QUICK, check_answers


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
    batch = int(15 * headroom(layers, 0.5, model_layers=40))
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


@pytest.mark.parametrize("migrated", [0, 1])
def test_a_batch_that_outgrows_the_card_is_served_again(migrated: int) -> None:
    takes_all = replace(DEFAULTS, batch="memory", migrated=migrated)
    most = rows_that_fit(takes_all)
    assert first_bytes(takes_all, most, 341) <= takes_all.hbm_bytes
    assert first_bytes(takes_all, most + 1, 341) > takes_all.hbm_bytes
    fits, fails = drained(takes_all, most), drained(takes_all, most + 1)
    assert (fits.failed, fits.failed_batches, fits.batches) == (0, 0, 1)
    assert (fails.failed, fails.failed_batches, fails.batches) == (most + 1, 1, 3)
    assert len(fails.latencies_s) == most + 1
    assert min(fails.latencies_s) > 25.0 + min(fits.latencies_s)
    sooner = drained(replace(takes_all, restart_seconds=8.0), most + 1)
    assert fails.latency_s - sooner.latency_s == pytest.approx(17.0)
    assert fails.makespan_s - sooner.makespan_s == pytest.approx(17.0)


def test_a_layer_away_makes_room() -> None:
    """A fortieth of the keys and values, and the layer's weights."""
    home, away = (rows_that_fit(replace(DEFAULTS, migrated=n)) for n in (0, 1))
    assert 1.05 * home < away < 1.1 * home


def test_instances_share_nothing() -> None:
    two, one = drained(replace(DEFAULTS, instances=2), 30), drained(DEFAULTS, 15)
    assert two.throughput_rps == pytest.approx(2 * one.throughput_rps)
    assert two.latency_s == pytest.approx(one.latency_s)


def test_continuous_batches_wait_for_nobody() -> None:
    paged = replace(DEFAULTS, engine="continuous")
    assert drained(paged, 16).latency_s < drained(paged, 15).latency_s * 1.03
    assert drained(DEFAULTS, 16).makespan_s > 1.8 * drained(DEFAULTS, 15).makespan_s


def test_the_planner_acts_at_every_gamma_below_1_and_at_none_above() -> None:
    assert copied_layers("literal") == copied_layers(1.0) == 0
    assert copied_layers() == copied_layers(0.1) == copied_layers(0.99) == 40
    assert 0 < copied_layers(0.0, 0.6) < 40
    assert coco(DEFAULTS, batching="static", gamma="literal") == DEFAULTS
    assert coco(DEFAULTS, gamma="literal") == vllm(DEFAULTS)
    assert coco(replace(DEFAULTS, model="llama-2-70b", split=4)).layers == 0
    with pytest.raises(SettingError, match="engine='eager'"):
        coco(DEFAULTS, batching="eager")


def test_no_batching_and_no_copies_give_both_figures() -> None:
    """Two instances have half of the requests each: Fig. 10's gain is Fig. 8's at half the rate."""
    fig_8, fig_10 = (
        claim(f"cocoserve.{name}.throughput") for name in ("fig8.13b.low.hft", "fig10.high.hft2")
    )
    for batching in ("continuous", "static", "library"):
        for gamma in (0.0, "literal"):
            one = coco(DEFAULTS, batching=batching, gamma=gamma)
            alone, two = (
                mean_over(replace(one, instances=n), ends).throughput_rps
                / mean_over(replace(DEFAULTS, instances=n), ends).throughput_rps
                for n, ends in ((1, LOW), (2, HIGH))
            )
            are_near = alone > 0.8 * fig_8.value, 100 * (two - 1) < 1.2 * fig_10.value
            assert not all(are_near)


def test_copies_of_all_layers_take_what_a_second_instance_takes() -> None:
    """And serve as much: at equal memory a full copy is an instance that shares its batch."""
    copied, two = Served(layers=40), Served(instances=2)
    assert fig8.memory_mib(copied, 50) == pytest.approx(fig8.memory_mib(two, 50), rel=0.02)
    assert drained(copied, 30).throughput_rps == pytest.approx(
        drained(two, 30).throughput_rps, rel=0.02
    )


def test_an_engine_with_pages_uses_nine_tenths_of_a_card_at_most() -> None:
    paged = replace(DEFAULTS, engine="continuous")
    used = [fig9.bytes_used(paged, n) for n in (1, 10, 30, 50, 200)]
    assert used == sorted(used)
    assert used[-1] <= 0.9 * paged.hbm_bytes < used[-1] * 1.01
    assert fig9.bytes_used(DEFAULTS, 50) == fig9.bytes_used(DEFAULTS, 15)


@pytest.mark.parametrize(
    "compute",
    [
        costs.compute,
        fig3.compute,
        fig3.compute_failures,
        fig8.compute,
        pytest.param(fig8.compute_instances, marks=pytest.mark.slow),
        fig9.compute,
    ],
)
def test_answers_have_the_shape_of_their_claims(compute: Callable[[Context], Computed]) -> None:
    check_answers(compute(QUICK))
