"""Copies of layers that read host memory, in closed form: what must hold whatever the numbers."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from c2c.models import load_spec
from experiments.figure import Context
from experiments.papers.cocoserve import host_copies


@pytest.fixture(scope="module")
def ways() -> dict[str, list[dict[str, Any]]]:
    context = Context(profile="quick", link_variant="measured", seeds=(0,))
    result = defaultdict(list)
    for row in host_copies.compute(context).tables["copies"].to_pylist():
        result[row["way"]].append(row)
    return result


def test_all_ways_begin_alike(ways: dict[str, list[dict[str, Any]]]) -> None:
    rates = [rows[0]["tokens_per_s"] for rows in ways.values()]
    assert len(ways) == 5
    assert rates == pytest.approx([rates[0]] * 5, rel=1e-9)


def test_a_copy_in_host_memory_is_slower_and_holds_no_fewer_rows(
    ways: dict[str, list[dict[str, Any]]],
) -> None:
    for room in ("empty", "a quarter free"):
        both = (
            ways[f"copies in {where} memory, second slice {room}"] for where in ("device", "host")
        )
        for in_device, in_host in zip(*both, strict=True):
            assert in_host["rows"] >= in_device["rows"]
            if in_host["rows"] == in_device["rows"]:
                assert in_host["step_s"] >= in_device["step_s"] * (1 - 1e-12)


def test_rows_are_what_memory_of_the_first_slice_allows(
    ways: dict[str, list[dict[str, Any]]],
) -> None:
    rows = ways["copies in host memory, second slice empty"]
    first, layers = rows[0]["rows"], load_spec("llama-3-8b").layers
    for row in rows:
        grown = first / (1 - row["layers"] / (2 * layers))
        assert row["rows"] == pytest.approx(grown, abs=2)
    alone = ways["layers in host memory, no second slice"]
    assert all(a["rows"] < b["rows"] and a["step_s"] < b["step_s"] for a, b in pairwise(alone))
