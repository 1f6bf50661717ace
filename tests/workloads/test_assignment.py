"""Model ids of a trace to catalog models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.workloads.assignment import MOST_OWN, OWN, RULES, assign_models, describe_assignment

SEEN = {"m3": 5, "m1": 50, "tied": 5, "large": 7, "m2": 20}
CATALOG = ("small", "large", "huge")


@pytest.mark.parametrize(
    ("rules", "target"),
    [
        ([], {"m1": "small", "m2": "large", "m3": "huge", "tied": "small"}),
        (["round_robin_by_first_seen"],
         {"m3": "small", "m1": "large", "tied": "huge", "m2": "small"}),
    ],
)  # fmt: skip
def test_a_rule_leaves_catalog_names_alone(rules: list[str], target: dict[str, str]) -> None:
    assert assign_models(SEEN, CATALOG, *rules).target == target | {"large": "large"}


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
    rule=st.sampled_from([rule for rule in RULES if rule != OWN]),
)
def test_every_id_gets_one_model_and_no_request_is_lost(counts: dict[str, int], rule: str) -> None:
    assigned = assign_models(counts, CATALOG, rule)
    assert list(assigned.target) == list(counts)
    others = [target for name, target in assigned.target.items() if name not in CATALOG]
    sizes = [others.count(name) for name in CATALOG]
    assert max(sizes) - min(sizes) <= 1
    said = describe_assignment(counts, assigned, CATALOG, rule)
    assert sum(said["requests"].values()) == sum(counts.values())
    assert said["kept"] == [name for name in counts if name in CATALOG]


@given(
    counts=st.dictionaries(
        st.sampled_from([f"m{i}" for i in range(30)] + list(CATALOG) + ["org/large", "LARGE"]),
        st.integers(1, 1000),
        min_size=1,
    )
)
def test_ids_with_models_of_their_own_share_none(counts: dict[str, int]) -> None:
    assigned = assign_models(counts, CATALOG, OWN)
    assert list(assigned.target) == list(counts)
    assert len(set(assigned.target.values())) == len(counts)
    assert set(assigned.target.values()) <= set(assigned.made_of)
    assert len(assigned.made_of) >= max(len(CATALOG), len(counts))
    for name, target in assigned.target.items():
        if name in CATALOG:
            assert target == name
        if "large" in name.lower():
            assert CATALOG[assigned.made_of[target]] == "large"
    # Models of the catalog that an id has taken keep their place; copies follow in turn.
    assert list(assigned.made_of.values())[: len(CATALOG)] == [0, 1, 2]
    if not any("large" in name.lower() or name in CATALOG for name in counts):
        by_popularity = sorted(counts, key=lambda name: -counts[name])
        found = [assigned.made_of[assigned.target[name]] for name in by_popularity]
        assert found == [k % len(CATALOG) for k in range(len(counts))]


def test_ids_that_share_a_model_of_their_name_get_copies_of_it() -> None:
    catalog, specs = ("chat-000", "chat-001", "small"), ("llama-3-8b", "llama-3-8b", "llama-3-3b")
    seen = {"a/llama-3-8b": 1, "b/llama-3-8b": 5, "c/llama-3-8b": 2, "other": 1, "more": 9}
    assigned = assign_models(seen, catalog, OWN, specs=specs)
    assert assigned.target == {
        "a/llama-3-8b": "chat-000", "b/llama-3-8b": "b/llama-3-8b",
        "c/llama-3-8b": "c/llama-3-8b", "other": "other", "more": "more",
    }  # fmt: skip
    assert assigned.made_of == {
        "chat-000": 0, "b/llama-3-8b": 1, "more": 2, "c/llama-3-8b": 0, "other": 0,
    }  # fmt: skip
    mapped = assign_models(seen, catalog, OWN, {"other": "small", "more": "small"}, specs)
    assert mapped.target["other"] == mapped.target["more"] == "small"


def test_too_many_ids_for_a_deployment_each_are_refused() -> None:
    seen = {f"user-{k}": 1 for k in range(MOST_OWN + 1)}
    with pytest.raises(SettingError, match=r"at most 10,000 model ids.*10,001, such as user-0, us"):
        assign_models(seen, CATALOG, OWN)
    assert len(assign_models(seen, CATALOG).target) == len(seen)


@pytest.mark.parametrize("rule", [OWN, "popularity_rank"])
@pytest.mark.parametrize(
    ("name", "catalog"),
    [
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("hosted_vllm/meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B-Instruct"),
        ("hosted_vllm/meta-llama/Llama-3.1-8B-Instruct", "meta-llama/llama-3.1-8b-instruct"),
        ("Qwen3-32B", "Qwen/Qwen3-32B"),
        ("qwen3_32b", "qwen3-32b"),
        ("Qwen/Qwen1-5_7B", "qwen1.5-7b"),
        ("Qwen/Qwen3-32B~1", "qwen3-32b"),
        ("QWEN3-32B", "qwen3-32b-000"),
    ],
)
def test_ids_name_models_after_the_slash_case_aside(rule: str, name: str, catalog: str) -> None:
    # By popularity alone the other model would serve the id.
    assert assign_models({name: 9}, ("other", catalog), rule).target == {name: catalog}
    specs = ("llama-3-8b", catalog)
    assert assign_models({name: 9}, ("other", "mine"), rule, specs=specs).target == {name: "mine"}


@pytest.mark.parametrize(
    ("name", "catalog"),
    [
        ("Qwen/Qwen3-32B", ("qwen3-32b", "QWEN3-32B")),
        ("m", ("a/m", "b/m")),
        ("x.1", ("X-1", "x_1")),
    ],
)
def test_an_id_that_names_two_models_is_refused(name: str, catalog: tuple[str, ...]) -> None:
    both = f"'{name}': expected an entry.*{catalog[0]} and {catalog[1]}"
    with pytest.raises(SettingError, match=both):
        assign_models({name: 1}, catalog)
    assert assign_models({name: 1}, (*catalog, name)).target == {name: name}


@pytest.mark.parametrize("name", ["a/m", "qwen-3-32b", "qwen3", "/", "a" + 9999 * "/"])
def test_ids_that_only_resemble_a_name_name_no_model(name: str) -> None:
    assert assign_models({name: 1}, ("qwen3-32b", "b/m")).how == {name: "rule"}


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


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("meta-llama/Meta-Llama-3-70B-Instruct", "llama-3-70b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", "qwen3-235b-a22b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
    ],
)
def test_a_known_model_outside_the_catalog_is_added(rule: str, name: str, model: str) -> None:
    seen = {"svc-1": 9, name: 5, f"x/{name}": 2, "svc-2": 1}
    found = assign_models(seen, ("small", "large"), rule, specs=("a", "b"), may_add=True)
    assert found.added == (model,)
    of = {id_: (("small", "large", model)[found.made_of[t]]) for id_, t in found.target.items()}
    assert of == {"svc-1": "small", name: model, f"x/{name}": model, "svc-2": "large"}
    assert found.target[name] == model
    if rule == OWN:
        assert found.target[f"x/{name}"] == f"x/{name}"
    said = describe_assignment(seen, found, ("small", "large"), rule)
    assert (said["how"][name], said["requests"][model]) == ("name", 5 if rule == OWN else 7)


@pytest.mark.parametrize(
    "name",
    [
        "Llama-3.1-8B-Instruct", "qwen3-32b-awq", "Qwen3-8B", "Llama-2-7b-v2", "team-it",
        "gpt-4o-202",
    ],
)  # fmt: skip
def test_another_release_is_no_known_model(name: str) -> None:
    found = assign_models({name: 1}, ("small", "team"), OWN, may_add=True)
    assert (found.added, found.how) == ((), {name: "rule"})


def test_a_model_that_is_known_and_not_served_stops_the_run() -> None:
    with pytest.raises(SettingError, match=r"'Llama-3-70B'.* asks for llama-3-70b, which the cat"):
        assign_models({"Llama-3-70B": 1}, CATALOG)
    with pytest.raises(SettingError, match=r"asks for qwen3-32b.*map=\{x/Qwen/Qwen3-32B: <model>"):
        assign_models({"x/Qwen/Qwen3-32B": 1}, CATALOG, OWN)
    told = assign_models({"Llama-3-70B": 1}, CATALOG, explicit={"Llama-3-70B": "huge"})
    assert told.target == {"Llama-3-70B": "huge"}
    assert told.how == {"Llama-3-70B": "map"}
