"""Predictions under other readings, and printed values that nothing but comparisons may use."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from experiments.claims import Result, claim, fidelity_rows, load_claims, totals
from experiments.claims.classes import readings, readings_of
from experiments.claims.load import Claim
from experiments.claims.robust import readings_table, standing, under_readings
from experiments.figure import figures
from tests.experiments.duties import QUICK

USED = "cocoserve.fig9.used"  # 37.5 GB; names answer_tokens, prompt_tokens and hbm_bytes


def result(name: str = USED, ours: Any = 37.5) -> Result:
    return Result(claim_id=name, ours=ours, unit=claim(name).unit, sample="out-of-sample")


def named() -> dict[str, tuple[Any, ...]]:
    return {reading.name: reading.alternatives for reading in readings_of(USED) or ()}


def all_tried(ours: float) -> Result:
    told = {f"{name}={value}": ours for name, values in named().items() for value in values}
    return replace(result(), by_reading=told)


def test_a_prediction_is_robust_if_every_alternative_agrees() -> None:
    assert standing(all_tried(37.0)) == "robust"
    assert standing(all_tried(20.0)) == "fragile"


def test_one_alternative_that_misses_makes_it_fragile_and_one_left_out_untried() -> None:
    some = dict(all_tried(37.0).by_reading)
    first = next(iter(some))
    assert standing(replace(result(), by_reading={**some, first: 1.0})) == "fragile"
    some.pop(first)
    assert standing(replace(result(), by_reading=some)) == "untried"


def test_without_readings_written_down_nothing_is_robust() -> None:
    assert readings_of("medusa.fig7a.vs_vllm") is None
    assert standing(result("medusa.fig7a.vs_vllm", 42.5)) == "untried"
    assert readings_of("tessera.sec2c.gemv_speedup") == ()  # nothing of it is left open
    assert standing(result("tessera.sec2c.gemv_speedup", 1.9)) == "robust"


def test_alternatives_are_tried_until_one_misses() -> None:
    asked = []

    def answers(**reading: Any) -> Iterator[Result]:
        asked.append(reading)
        yield result(ours=37.0 if len(asked) < 3 else 1.0)

    (found,) = under_readings([result()], answers, named())
    assert len(asked) == 3
    assert all(len(reading) == 1 for reading in asked)
    assert standing(found) == "fragile"
    assert list(found.by_reading.values()) == [37.0, 37.0, 1.0]


def test_a_miss_asks_for_no_alternative_unless_all_are_wanted() -> None:
    asked = []

    def answers(**reading: Any) -> Iterator[Result]:
        asked.append(reading)
        yield result(ours=1.0)

    under_readings([result(ours=1.0)], answers, named())
    assert not asked
    (found,) = under_readings([result(ours=1.0)], answers, named(), everything=True)
    assert len(asked) == len(found.by_reading) == sum(map(len, named().values()))


def test_alternatives_that_a_figure_cannot_say_stay_untried() -> None:
    def answers(**reading: Any) -> Iterator[Result]:
        yield result()

    (found,) = under_readings([result()], answers, {"prompt_tokens"})
    assert standing(found) == "untried"
    table = readings_table([found])
    assert table["reading"].to_pylist() == ["default", "prompt_tokens=21", "prompt_tokens=170"]
    assert table["agrees"].to_pylist() == [True] * 3


def test_standings_are_counted_by_paper_and_only_of_what_agrees() -> None:
    results = [all_tried(37.0), result("weaver.mem.weaver.qps", 1.0)]
    rows = fidelity_rows(load_claims(), results, frozenset())
    found = totals(rows)["out_of_sample_by_system"]
    assert found["cocoserve"]["robust"] == 1
    assert sum(found["weaver"][name] for name in ("robust", "fragile", "untried")) == 0


def test_readings_name_claims_of_their_system() -> None:
    for system in ("cocoserve", "weaver", "tessera"):
        for reading in readings(system).values():
            assert reading.default not in reading.alternatives


def other(value: Any) -> Any:
    """Return another printed value of the same shape."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return 1.7 * value + 3
    if isinstance(value, list):
        return [other(v) for v in value]
    if isinstance(value, dict):
        return {k: other(v) for k, v in value.items()}
    return value


# A paper's printed values may enter inputs, fits and what is drawn beside ours, and nothing else.
CHEAP = ("table1", "fig8", "tessera.fig2", "weaver.table1", "medusa.fig8", "cocoserve.table2")
DEAR = ("fig4", "fig6", "fig9", "medusa.switch", "tessera.fig8", "cocoserve.fig9", "weaver.fig7")


@pytest.mark.parametrize(
    "name", [*CHEAP, *(pytest.param(name, marks=pytest.mark.slow) for name in DEAR)]
)
def test_other_printed_values_change_nothing_that_is_predicted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = figures()[name].compute
    before = compute(QUICK).results
    rows = fidelity_rows(load_claims(), before, frozenset())
    predicted = {row.claim.id for row in rows if row.status == "out-of-sample"}
    changed: dict[str, Claim] = {
        key: replace(found, value=other(found.value)) if key in predicted else found
        for key, found in load_claims().items()
    }
    for module in ("experiments.claims.load", "experiments.claims.classes"):
        monkeypatch.setattr(f"{module}.load_claims", lambda: changed)
    assert not predicted or claim(min(predicted)).value == changed[min(predicted)].value
    after = {found.claim_id: found.ours for found in compute(QUICK).results}
    for found in before:
        if found.claim_id in predicted and not isinstance(claim(found.claim_id).value, str):
            assert after[found.claim_id] == found.ours
