"""Sets of mechanisms, and what each is worth in them."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.config import build, check_choices, load
from c2c.errors import SettingError
from c2c.hardware import conf_dir
from experiments.figure import Context, figures
from experiments.papers.composed.sets import refusal, settings_of, shapley, subsets

PAGE = Path(__file__).parents[3] / "docs" / "systems" / "composed.md"
FULL = Context(profile="full", link_variant="measured", seeds=(0,))
WORTH = figures()["worth"].settings(FULL)
PAIRS = figures()["pairs"].settings(FULL)
SLICES = ("node=slices", "mig=4g_3g")  # of one chip, for layouts whose weights are streamed

worths = st.dictionaries(
    st.sampled_from(list(subsets("abcd"))), st.floats(-1e3, 1e3), min_size=16, max_size=16
)


def mechanisms() -> tuple[str, ...]:
    """Return the names of all mechanisms, the files of `conf/system/mechanism`."""
    return tuple(sorted(f.stem for f in (conf_dir() / "system" / "mechanism").glob("*.yaml")))


@given(worths)
def test_shapley_values_sum_to_what_all_add(worth: dict[frozenset[str], float]) -> None:
    values = shapley(worth)
    assert sum(values.values()) == pytest.approx(worth[frozenset("abcd")] - worth[frozenset()])


@given(worths)
def test_alike_mechanisms_have_one_value_and_idle_ones_none(
    worth: dict[frozenset[str], float],
) -> None:
    swap = {"a": "b", "b": "a"}
    alike = {s: worth[s] + worth[frozenset(swap.get(n, n) for n in s)] for s in worth}
    values = shapley(alike)
    assert values["a"] == pytest.approx(values["b"], abs=1e-6)
    idle = {s: worth[s - {"c"}] for s in worth}
    assert shapley(idle)["c"] == pytest.approx(0.0, abs=1e-9)


def test_shapley_values_by_hand_where_one_needs_another() -> None:
    """b needs a: orders ab and ba both end at 4, and b alone has what nothing has."""
    of = {frozenset(): 1.0, frozenset("a"): 2.0, frozenset("ab"): 5.0}
    assert shapley(of) == {"a": 2.5, "b": 1.5}
    with pytest.raises(ValueError, match="several largest"):
        shapley({frozenset(): 0.0, frozenset("a"): 1.0, frozenset("b"): 1.0})


def test_every_mechanism_works_alone_or_with_streamed_weights() -> None:
    for name in mechanisms():
        assert refusal({name}) is None or refusal({name, "streamed"}) is None


def test_a_mechanism_that_needs_another_is_refused_with_the_reason() -> None:
    assert "nothing_kept where weights are not streamed" in str(refusal({"kept"}))
    assert "several engines of a slice have all their weights" in str(refusal({"turns"}))


def test_other_settings_that_cannot_work_are_errors() -> None:
    with pytest.raises(SettingError, match="superchips"):
        refusal({"streamed"}, ["superchips=0"])


@pytest.mark.parametrize("fleet", ["GH200 + L40S", "H100 + RTX PRO 6000"])
def test_unlike_chips_take_all_mechanisms_but_those_left_out(fleet: str) -> None:
    here = WORTH.fleets[fleet]
    every = frozenset(WORTH.mechanisms) - {*here.without}
    assert refusal(every, here.settings) is None
    for name in here.without:
        error = refusal(every | {name}, here.settings)
        assert error is not None
        assert "in a fleet of several parts" in str(error)


@pytest.mark.parametrize("name", PAIRS.pairs)
def test_the_figure_of_pairs_compares_systems_that_work(name: str) -> None:
    pair = PAIRS.pairs[name]
    for system, settings in pair.systems.items():
        made = build(load(["system=composed", "workload=poisson", "workload.requests=1",
                           *pair.settings, *settings]))  # fmt: skip
        assert made.serving.system.layout is not None or "streamed" in system or "HBM" in system
    assert next(iter(pair.systems)) == name


def pairs() -> dict[tuple[str, str], SettingError | None]:
    """Return the error of each pair of mechanisms, None if both can work together.

    `streamed` is added if one of the two needs it.
    """
    names = mechanisms()
    alone = {n: refusal({n}) for n in names}
    result = {}
    for one, other in combinations(names, 2):
        need = {"streamed"} if alone[one] or alone[other] else set()
        every = {one, other} | need
        result[one, other] = refusal(every, SLICES if on_slices(every) else ())
    return result


def on_slices(names: Collection[str]) -> bool:
    return "streamed" in names and not {"copies", "kernels", "woven"}.isdisjoint(names)


def as_markdown() -> str:
    """Return the table of pairs for docs/systems/composed.md."""
    names, found = mechanisms(), pairs()
    why = {pair: error.hint or str(error) for pair, error in found.items() if error}
    reasons = list(dict.fromkeys(why.values()))
    lines = [f"| | {' | '.join(names[1:])} |", f"| --- |{' --- |' * (len(names) - 1)}"]
    for k, one in enumerate(names[:-1]):
        cells = ["" for _ in names[1 : k + 1]]
        for other in names[k + 1 :]:
            reason = why.get((one, other))
            works = "slices" if on_slices((one, other)) else "yes"
            cells.append(works if reason is None else f"no ({reasons.index(reason) + 1})")
        lines.append(f"| {one} | {' | '.join(cells)} |")
    lines += ["", *(f"{k + 1}. {reason}" for k, reason in enumerate(reasons))]
    return "\n".join(lines)


@pytest.mark.slow
def test_the_page_has_the_table_of_pairs() -> None:
    assert as_markdown() in PAGE.read_text("utf-8"), as_markdown()


def test_two_of_a_set_that_set_the_same_are_refused() -> None:
    with pytest.raises(SettingError, match=r"expected copies or woven\. Both set layout"):
        check_choices(["system/mechanism=[copies,streamed,woven]"])
    check_choices(["system/mechanism=[]", "system/mechanism=[streamed,kept]"])
    check_choices(["-m", "system/mechanism=[streamed],[streamed,kept]"])
    with pytest.raises(SettingError, match="expected one of apart"):
        load(["system=composed", "system/mechanism=[keep]"])


def test_mechanisms_do_what_the_systems_of_their_papers_do() -> None:
    """The default set is c2cserve_plus in all policies; a set without any is not streamed."""
    plus, ours = load(["system=c2cserve_plus"]).system, load(["system=composed"]).system
    differ = {k for k in plus if plus[k] != ours[k]}
    assert differ == {"name"}
    assert load(settings_of([])).system.load.policy == "resident"
