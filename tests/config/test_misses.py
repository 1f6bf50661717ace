"""Misses of experts from a table where a run is long and the files leave it open."""

from __future__ import annotations

import pytest

from c2c.config import RunSetup, build, load
from c2c.config.build import MOST_WALKED
from c2c.errors import SettingError

CACHING = ["system=moe_infinity_code", "catalog=moe", "workload=poisson"]


def built(requests: int, *more: str) -> RunSetup:
    return build(load([*CACHING, f"workload.requests={requests}", *more]))


@pytest.mark.parametrize(
    ("requests", "more", "is_table"),
    [
        (MOST_WALKED, (), False),
        (MOST_WALKED + 1, (), True),
        (MOST_WALKED + 1, ("workload.max_requests=10",), False),
        (MOST_WALKED + 1, ("system.expert_cache.misses=exact",), False),
        (10, ("system.expert_cache.misses=table",), True),
        (MOST_WALKED + 1, ("system.max_batch=2",), False),  # no table for batches
        (MOST_WALKED + 1, ("mig=3g_4x1g",), False),  # nor for unlike slices
    ],
)
def test_a_long_run_takes_a_table_where_there_is_one(
    requests: int, more: tuple[str, ...], is_table: bool
) -> None:
    setup = built(requests, *more)
    assert setup.prepared.fleet.folds_experts == is_table
    said = any(note.startswith("system.expert_cache.misses=auto") for note in setup.notes)
    assert said == (is_table and not any("misses=" in one for one in more))
    assert setup.settings["system"]["expert_cache"]["misses"] != "exact" or more


def test_a_table_that_is_asked_for_by_name_is_refused_where_there_is_none() -> None:
    with pytest.raises(SettingError, match=r"^system\.expert_cache\.misses='table'"):
        built(10, "system.expert_cache.misses=table", "system.max_batch=2")


def test_a_system_without_a_cache_of_experts_has_no_table() -> None:
    setup = build(load(["system.expert_cache.misses=auto", "workload.requests=2000"]))
    assert not setup.prepared.fleet.folds_experts
    assert not any("expert_cache" in note for note in setup.notes)
