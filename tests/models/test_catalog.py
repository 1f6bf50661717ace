"""Catalogs: what is shipped, how copies are named, what is refused."""

import math
from typing import Any

import pytest
from omegaconf import OmegaConf

from c2c.errors import SettingError
from c2c.hardware import conf_dir, link_gbps, load_platform
from c2c.models import catalogs, load_catalog, load_spec, streamed_bytes, weight_bytes

PAPER = ["llama-3-8b", "llama-3-3b", "qwen3-30b-a3b", "mixtral-8x7b", "llama-3-70b"]


def test_shipped_catalogs() -> None:
    assert set(catalogs()) >= {"dense", "dense_70b", "moe", "paper", "fleet89"}
    assert [d.name for d in load_catalog("paper")] == PAPER
    assert {d.name for d in load_catalog("dense")} == {"llama-3-3b", "llama-3-8b"}
    assert {d.name for d in load_catalog("moe")} == {"mixtral-8x7b", "qwen3-30b-a3b"}
    assert len(load_catalog("dense_70b")) == 3


def test_the_fleet_alternates_down_the_ranks() -> None:
    fleet = load_catalog("fleet89")
    assert len(fleet) == 89
    assert [d.name for d in fleet[:3]] == ["llama-3-8b-000", "llama-3-3b-000", "llama-3-8b-001"]
    assert fleet[-1].name == "llama-3-8b-044"
    assert len({d.name for d in fleet}) == 89
    assert len({d.spec for d in fleet}) == 2


# One that pairs of GPUs serve out of their own memory has targets of its own.
@pytest.mark.parametrize("name", sorted({*catalogs()} - {"gpt_oss", "deepseek_v3"}))
def test_targets_can_be_met_by_streaming_alone_on_the_link(name: str) -> None:
    gh200 = load_platform("gh200")
    link = link_gbps(gh200.link, "measured")
    for d in load_catalog(name):
        assert float(streamed_bytes(d.spec, 64)) / 1e9 / link < d.tpot_slo_s, d.name
        assert float(streamed_bytes(d.spec, 512)) / 1e9 / link < d.ttft_slo_s, d.name


def test_the_papers_models_fit_one_host() -> None:
    total = sum(weight_bytes(d.spec) for d in load_catalog("paper"))
    assert total < load_platform("gh200").host.memory_bytes


@pytest.mark.parametrize("name", catalogs())
def test_hydras_view_of_a_catalog_gives_the_same(name: str) -> None:
    composed = OmegaConf.load(conf_dir() / "catalog" / f"{name}.yaml")
    assert load_catalog(composed) == load_catalog(name)  # type: ignore[arg-type]


def test_names_copies_and_defaults() -> None:
    one, first, second = load_catalog(
        [{"spec": "llama-3-3b"}, {"spec": "yi-6b", "copies": 2, "name": "tuned", "tpot_slo_s": 1}]
    )
    assert (one.name, one.ttft_slo_s, one.tpot_slo_s) == ("llama-3-3b", 1.0, 0.2)
    assert (first.name, second.name) == ("tuned-000", "tuned-001")
    assert first.spec is load_spec("yi-6b")
    assert second.tpot_slo_s == 1


def test_round_robin_takes_what_is_left() -> None:
    models = [{"spec": "yi-6b"}, {"spec": "yi-9b", "copies": 3}, {"spec": "llama-3-3b"}]
    names = [d.name for d in load_catalog({"order": "round_robin", "models": models})]
    assert names == ["yi-6b", "yi-9b-000", "llama-3-3b", "yi-9b-001", "yi-9b-002"]


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ([{"spec": "llama-9"}], "model"),
        ([{"spec": 3}], "catalog.models[0].spec"),
        ([{}], "catalog.models[0].spec"),
        (["llama-3-8b"], "catalog.models[0]"),
        ([{"spec": "yi-6b", "copies": 0}], "catalog.models[0].copies"),
        ([{"spec": "yi-6b", "copies": 1.5}], "catalog.models[0].copies"),
        ([{"spec": "yi-6b", "name": 6}], "catalog.models[0].name"),
        ([{"spec": "yi-6b", "slo": 6}], "catalog.models[0].slo"),
        ([{"spec": "yi-6b", "ttft_slo_s": 0}], "catalog.yi-6b.ttft_slo_s"),
        ([{"spec": "yi-6b", "tpot_slo_s": math.nan}], "catalog.yi-6b.tpot_slo_s"),
        ([{"spec": "yi-6b", "tpot_slo_s": "fast"}], "catalog.yi-6b.tpot_slo_s"),
        ("nobody", "catalog"),
        ([], "catalog.models"),
        ({"models": "yi-6b"}, "catalog.models"),
        ({"models": [{"spec": "yi-6b"}], "order": "random"}, "catalog.order"),
        ({"modles": []}, "catalog.modles"),
        ([{"spec": "yi-6b"}, {"spec": "yi-6b"}], "catalog.name"),
        ([{"spec": "yi-6b", "copies": 2}, {"spec": "yi-9b", "name": "yi-6b-001"}], "catalog.name"),
    ],
)
def test_a_bad_catalog_is_named(data: Any, field: str) -> None:
    with pytest.raises(SettingError) as err:
        load_catalog(data)
    assert err.value.field == field


def test_an_unknown_catalog_lists_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r"catalog='huge': expected one of .*paper"):
        load_catalog("huge")
