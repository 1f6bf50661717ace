"""Model ids of a trace to catalog models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.workloads.assignment import RULES, assign_models, describe_assignment

SEEN = {"m3": 5, "m1": 50, "tied": 5, "large": 7, "m2": 20}
CATALOG = ("small", "large", "huge")


def test_popularity_rank_leaves_catalog_names_alone() -> None:
    assert assign_models(SEEN, CATALOG) == {
        "m1": "small",
        "m2": "large",
        "m3": "huge",
        "tied": "small",
        "large": "large",
    }


def test_round_robin_follows_first_appearance() -> None:
    assigned = assign_models(SEEN, CATALOG, "round_robin_by_first_seen")
    assert assigned == {
        "m3": "small",
        "m1": "large",
        "tied": "huge",
        "m2": "small",
        "large": "large",
    }


def test_an_explicit_map_goes_first() -> None:
    assigned = assign_models(SEEN, CATALOG, explicit={"m1": "huge", "large": "small"})
    assert assigned["m1"] == "huge"
    assert assigned["large"] == "small"
    assert assigned["m2"] == "small"  # now the most popular of the rest


def test_impossible_assignments_are_refused() -> None:
    with pytest.raises(SettingError, match="popularity_rank, round_robin"):
        assign_models(SEEN, CATALOG, "best")
    with pytest.raises(SettingError, match=r"assignment_map\.m1='gone'"):
        assign_models(SEEN, CATALOG, explicit={"m1": "gone"})
    with pytest.raises(SettingError, match="model ids of the trace: m3, m1"):
        assign_models(SEEN, CATALOG, explicit={"m9": "small"})


@given(
    counts=st.dictionaries(
        st.sampled_from([f"m{i}" for i in range(30)] + list(CATALOG)),
        st.integers(1, 1000),
        min_size=1,
    ),
    rule=st.sampled_from(list(RULES)),
)
def test_every_id_gets_one_model_and_no_request_is_lost(counts: dict[str, int], rule: str) -> None:
    assigned = assign_models(counts, CATALOG, rule)
    assert list(assigned) == list(counts)
    others = [target for name, target in assigned.items() if name not in CATALOG]
    sizes = [others.count(name) for name in CATALOG]
    assert max(sizes) - min(sizes) <= 1
    said = describe_assignment(counts, assigned, rule)
    assert sum(said["requests"].values()) == sum(counts.values())
    assert said["kept"] == [name for name in counts if name in CATALOG]
