"""The bracket closes on a threshold, whatever the quantity and however many points at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.config import build, load
from c2c.errors import SettingError
from c2c.models import load_catalog
from experiments.answers.bisection import Bracket, bracket_of, next_values
from experiments.answers.interval import interval_of
from experiments.answers.quantity import Quantity, override_of, quantity_of, with_value

RATE = Quantity(name="rate", unit="requests/s", is_whole=False, more_is_harder=True, start=1.0,
                lowest=1 / 64, highest=64.0)  # fmt: skip
MODELS = Quantity(name="models", unit="models", is_whole=True, more_is_harder=True, start=6,
                  lowest=1, highest=500)  # fmt: skip
CHIPS = Quantity(name="superchips", unit="Superchips", is_whole=True, more_is_harder=False,
                 start=1, lowest=1, highest=64)  # fmt: skip


def search(
    quantity: Quantity, meets: Callable[[float], bool], count: int
) -> tuple[Bracket, list[float]]:
    tried: dict[float, bool] = {}
    while values := next_values(quantity, tried, 0.01, count):
        assert 1 <= len(values) <= count
        for value in values:
            assert value not in tried
            assert quantity.lowest <= value <= quantity.highest
            tried[value] = meets(value)
    return bracket_of(quantity, tried), list(tried)


@given(st.floats(0.02, 60.0), st.integers(1, 5))
def test_a_rate_is_found_to_its_tolerance(limit: float, count: int) -> None:
    bracket, tried = search(RATE, lambda rate: rate <= limit, count)
    assert bracket.met is not None
    assert bracket.missed is not None
    assert bracket.met <= limit < bracket.missed <= 1.0101 * bracket.met
    assert len(tried) <= 14 + 3 * count


@given(st.integers(1, 499), st.integers(1, 5))
def test_a_whole_number_is_found_exactly(limit: int, count: int) -> None:
    assert search(MODELS, lambda n: n <= limit, count)[0] == Bracket(met=limit, missed=limit + 1)


@given(st.integers(2, 64), st.integers(1, 5))
def test_the_smallest_fleet_is_found(least: int, count: int) -> None:
    assert search(CHIPS, lambda n: n >= least, count)[0] == Bracket(met=least, missed=least - 1)


@pytest.mark.parametrize("quantity", [RATE, MODELS, CHIPS])
def test_where_there_is_no_limit_the_search_ends_at_its_ends(quantity: Quantity) -> None:
    hardest = quantity.highest if quantity.more_is_harder else quantity.lowest
    easiest = quantity.lowest if quantity.more_is_harder else quantity.highest
    assert search(quantity, lambda _: True, 1)[0] == Bracket(met=hardest, missed=None)
    assert search(quantity, lambda _: False, 1)[0] == Bracket(met=None, missed=easiest)


def test_the_easiest_miss_counts_where_chance_mixes() -> None:
    tried = {1.0: True, 2.0: False, 4.0: True, 8.0: False}
    assert bracket_of(RATE, tried) == Bracket(met=1.0, missed=2.0)


def test_a_quantity_begins_where_the_settings_are() -> None:
    steady = build(load(["workload=poisson", "workload.rate_rps=3", "workload.compression=2"]))
    rate = quantity_of("rate", steady)
    assert rate.start == 6.0
    doubled = with_value(steady.settings, rate, 12.0, 4)
    assert (doubled["workload"]["rate_rps"], doubled["seed"]) == (6.0, 4)
    assert steady.settings["workload"]["rate_rps"] == 3.0
    assert override_of(steady.settings, rate, 12.0) == "workload.rate_rps=6"
    trace = build(load(["workload=synthetic", "workload.requests=200"]))
    rate = quantity_of("rate", trace)
    assert rate.start == pytest.approx(200 / trace.workload.description["span_s"])
    assert override_of(trace.settings, rate, rate.start * 3) == "workload.compression=96"
    assert override_of(trace.settings, quantity_of("superchips", trace), 5) == "superchips=5"
    with pytest.raises(SettingError, match=r"capacity\.of='chips': expected one of rate, models"):
        quantity_of("chips", trace)


def test_ids_of_a_trace_are_no_number_of_models_to_search(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,model,prompt_tokens,output_tokens\n0,a,5,5\n1,b,5,5\n2,c,5,5\n")
    told = ["workload=file", f"workload.path={path}"]
    with pytest.raises(SettingError, match=r"capacity\.of='models': .* each id of the trace is"):
        quantity_of("models", build(load(told)))
    shared = build(load([*told, "workload.assignment=popularity_rank"]))
    assert quantity_of("models", shared).start == 2


@given(st.integers(1, 60))
def test_a_catalog_of_other_size_keeps_its_proportions(count: int) -> None:
    catalog = {
        "order": "round_robin",
        "models": [{"spec": "llama-3-3b", "copies": 4}, {"spec": "llama-3-8b"}],
    }
    settings = {"catalog": catalog, "workload": {}}
    found = load_catalog(with_value(settings, MODELS, count, 0)["catalog"])
    assert len(found) == count
    small = sum(d.spec.name == "llama-3-3b" for d in found)
    assert abs(small - 0.8 * count) < 1


def test_students_interval() -> None:
    # The tables' 95 % quantiles: 4.303 with 2 degrees of freedom, 2.776 with 4.
    three, five = interval_of([1.0, 2.0, 3.0]), interval_of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert three.half == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    assert five.half == pytest.approx(2.776 * 2.5**0.5 / 5**0.5, rel=1e-3)
    assert interval_of([2.0]).half is None


def test_a_fleet_of_engines_over_several_chips_grows_by_whole_devices() -> None:
    setup = build(load(["superchips=8", "tensor_parallel=4", "system=serverlessllm"]))
    size = quantity_of("superchips", setup)
    assert (size.start, size.unit) == (2, "devices of 4 chips")
    assert with_value(setup.settings, size, 3, 0)["superchips"] == 12
    assert override_of(setup.settings, size, 3) == "superchips=12"
