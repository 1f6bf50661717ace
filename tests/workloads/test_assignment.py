"""Model ids of a trace to catalog models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.workloads.assignment import RULES, assign_models, describe_assignment

SEEN = {"m3": 5, "m1": 50, "tied": 5, "large": 7, "m2": 20}
CATALOG = ("small", "large", "huge")


def test_popularity_rank_leaves_catalog_names_alone() -> None:
    assert assign_models(SEEN, CATALOG).target == {
        "m1": "small",
        "m2": "large",
        "m3": "huge",
        "tied": "small",
        "large": "large",
    }


def test_round_robin_follows_first_appearance() -> None:
    assigned = assign_models(SEEN, CATALOG, "round_robin_by_first_seen").target
    assert assigned == {
        "m3": "small",
        "m1": "large",
        "tied": "huge",
        "m2": "small",
        "large": "large",
    }


def test_an_explicit_map_goes_first() -> None:
    assigned = assign_models(SEEN, CATALOG, explicit={"m1": "huge", "large": "small"}).target
    assert assigned["m1"] == "huge"
    assert assigned["large"] == "small"
    assert assigned["m2"] == "small"  # now the most popular of the rest


def test_impossible_assignments_are_refused() -> None:
    with pytest.raises(SettingError, match="popularity_rank, round_robin"):
        assign_models(SEEN, CATALOG, "best")
    with pytest.raises(SettingError, match=r"assignment_map\.m1='gone'"):
        assign_models(SEEN, CATALOG, explicit={"m1": "gone"})
    with pytest.raises(SettingError, match="a model id of the trace: m3, m1"):
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
    assert list(assigned.target) == list(counts)
    others = [target for name, target in assigned.target.items() if name not in CATALOG]
    sizes = [others.count(name) for name in CATALOG]
    assert max(sizes) - min(sizes) <= 1
    said = describe_assignment(counts, assigned, rule)
    assert sum(said["requests"].values()) == sum(counts.values())
    assert said["kept"] == [name for name in counts if name in CATALOG]


def test_an_id_that_names_a_copy_or_a_spec_is_served_by_it_case_aside() -> None:
    catalog = ("chat-000", "chat-001", "llama-3-3b", "Mine")
    specs = ("llama-3-8b", "llama-3-8b", "llama-3-3b", "qwen1.5-7b")
    # By popularity alone the last would come first.
    seen = {"LLAMA-3-3B": 1, "Llama-3-8b": 2, "CHAT-001": 3, "chat": 4, "mine": 5, "Qwen1.5-7B": 6}
    found = assign_models({**seen, "other": 9}, catalog, specs=specs)
    assert found.target == {
        "LLAMA-3-3B": "llama-3-3b", "Llama-3-8b": "chat-000", "CHAT-001": "chat-001",
        "chat": "chat-000", "mine": "Mine", "Qwen1.5-7B": "Mine", "other": "chat-000",
    }  # fmt: skip
    assert found.how == {
        "LLAMA-3-3B": "name", "Llama-3-8b": "spec", "CHAT-001": "name", "chat": "name",
        "mine": "name", "Qwen1.5-7B": "spec", "other": "rule",
    }  # fmt: skip


def test_a_model_that_is_known_and_not_served_stops_the_run() -> None:
    with pytest.raises(SettingError, match=r"'Llama-3-70B'.* asks for llama-3-70b, which the cat"):
        assign_models({"Llama-3-70B": 1}, CATALOG)
    told = assign_models({"Llama-3-70B": 1}, CATALOG, explicit={"Llama-3-70B": "huge"})
    assert told.target == {"Llama-3-70B": "huge"}
    assert told.how == {"Llama-3-70B": "map"}
