"""The search for the smallest change that makes a claim agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from c2c.cost import load_constants
from c2c.errors import SettingError
from c2c.hardware import load_platform
from experiments.claims import Result, Takes, claim, fidelity_rows, load_claims, misses_table
from experiments.claims.beside import reasons_of_misses
from experiments.sensitivity import Search, chip_knobs, constant_knobs

WEIGHTS = "c2cserve.sec2.70b_weights"  # 140 GB: ours agrees from 112 to 168
KNOBS = {k.name: k for k in (*chip_knobs(), *constant_knobs())}


def search(ours: Callable[[], float], *names: str) -> Search:
    assert claim(WEIGHTS).value == 140

    def results() -> list[Result]:
        return [Result(claim_id=WEIGHTS, ours=ours(), unit="GB", sample="out-of-sample")]

    return Search(compute=results, knobs=[KNOBS[name] for name in names])


def relative(name: str) -> float:
    """Return a constant over its value in the settings, without a change 1."""
    return float(getattr(load_constants(), name)) / KNOBS[name].value


def disk() -> float:
    return load_platform("gh200").host.disk_gbps / KNOBS["disk rate"].value


def test_the_smallest_change_of_several_is_first() -> None:
    names = ("launch_s", "disk rate", "elementwise_s")
    (found,) = search(lambda: 50 * relative("launch_s") * disk() ** -0.5, *names).missed()
    assert [c.knob for c in found.changes] == ["launch_s", "disk rate"]
    nearest, second = found.changes
    assert 112 / 50 <= nearest.factor <= 1.03 * 112 / 50
    assert nearest.after == pytest.approx(nearest.factor * KNOBS["launch_s"].value)
    assert 0.94 * (50 / 112) ** 2 <= second.factor <= (50 / 112) ** 2
    assert (found.tried, found.matter) == (3, 2)


def test_a_window_between_two_factors_is_found() -> None:
    """The value is 100 at the double and 200 at four times: it agrees only in between."""
    search_ = search(lambda: 25 * relative("launch_s") ** 1.5, "launch_s")
    (found,) = search_.missed()
    (change,) = found.changes
    assert 112 <= 25 * change.factor**1.5 <= 168


def test_none_is_said_where_no_number_does() -> None:
    (far,) = search(lambda: 1 + relative("launch_s"), "launch_s").missed()
    assert (far.changes, far.matter) == ((), 1)
    (still,) = search(lambda: 3.0, "launch_s", "disk rate").missed()
    assert (still.changes, still.matter) == ((), 0)


def test_shares_stay_below_one_and_refused_settings_end_the_walk() -> None:
    share = KNOBS["link_efficiency"].value
    (found,) = search(
        lambda: 140 * load_constants().link_efficiency - 50, "link_efficiency"
    ).missed()
    assert found.ours == pytest.approx(140 * share - 50)
    assert found.changes == ()  # 90 at most

    def refuses() -> float:
        if relative("launch_s") > 1.5:
            raise SettingError("launch_s", 1, "less")
        return 50 * relative("launch_s")

    assert search(refuses, "launch_s").missed()[0].changes == ()


def test_what_agrees_is_not_searched_and_nothing_is_computed_twice() -> None:
    calls = []

    def ours() -> float:
        calls.append((relative("launch_s"), disk()))
        return 140.0 if len(calls) == 1 else 0.0

    assert search(ours, "launch_s").missed() == []
    assert len(calls) == 1
    calls.append((0.0, 0.0))
    search(ours, "launch_s", "disk rate").missed()
    assert len(set(calls[2:])) == len(calls[2:])


def test_rows_carry_it_only_where_the_claim_is_missed() -> None:
    told: dict[str, Takes] = {WEIGHTS: ("a larger model", 1.1)}
    for ours, expected in ((141.0, ""), (14.0, "a larger model")):
        result = Result(claim_id=WEIGHTS, ours=ours, unit="GB", sample="identity")
        rows = fidelity_rows(load_claims(), [result], frozenset(), told)
        (row,) = [r for r in rows if r.claim.id == WEIGHTS]
        assert row.as_dict()["what_would_it_take"] == expected
        assert row.nearest == (1.1 if expected else None)


def test_a_figures_search_says_how_far_its_misses_are() -> None:
    from experiments.figure import Context
    from experiments.sensitivity import takes

    found = takes.compute(Context(profile="quick", link_variant="measured", seeds=(0,)), "fig4")
    assert set(found.takes) == {"c2cserve.fig3.hybrid_interpolates"}
    ((told, nearest),) = found.takes.values()
    assert told.startswith("None of")
    assert nearest is None
    (row,) = found.tables["takes"].to_pylist()
    assert row["knob"] is None
    assert row["matter"] <= row["tried"] == len(takes.knobs_of("fig4"))
    assert {k.name for k in takes.knobs_of("fig10")} >= {"disk rate", "engine_init_s"}


def test_every_miss_with_a_reason_is_of_a_figure_that_is_searched() -> None:
    from experiments.sensitivity import takes

    by = {"fig3": "fig4", "abstract": "fig12"}  # whose module answers it
    parts = {n.split(".")[1] for n in reasons_of_misses() if n.startswith("c2cserve.")}
    assert len(parts) > 7
    assert {by.get(part, part.rstrip("ab")) for part in parts} <= set(takes.SEARCHED)


def test_misses_are_told_as_a_table_of_markdown() -> None:
    name = "c2cserve.fig13.aegaeon.after"
    told: dict[str, Takes] = {name: ("the link x 0.3 | half", 3.3)}
    results = [
        Result(claim_id=claim_id, ours=ours, unit="s", sample="out-of-sample")
        for claim_id, ours in (("c2cserve.fig13.aegaeon.before", 0.48), (name, 0.046))
    ]  # fmt: skip
    table = misses_table(fidelity_rows(load_claims(), results, frozenset(), told)).splitlines()
    assert table[2:] == [
        "| `c2cserve.fig13.aegaeon.after` | 0.15 | 0.046 | the link x 0.3 / half |"
    ]
    unasked = misses_table(fidelity_rows(load_claims(), results, frozenset())).splitlines()
    assert unasked[2].endswith("| not searched in this profile |")
