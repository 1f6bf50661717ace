"""Every system against load: none is left out; a load counts as served if smaller ones are."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pyarrow as pa
import pytest

from c2c.config import choices
from experiments.c2cserve import every_system
from experiments.c2cserve.every_system import FAMILIES, WITHIN_PERCENT, capacity_rps
from experiments.figure import Context
from experiments.figures.every_system import draw_every_system

QUICK = Context(profile="quick", link_variant="measured", seeds=(0,))


def test_no_system_is_left_out() -> None:
    shown = {*chain.from_iterable(family.systems for family in FAMILIES)}
    assert shown == {*choices("system")} - {"composed"}  # whose mechanisms are those of plus
    for family in FAMILIES:
        assert {*family.quick} <= {*family.systems}


def test_a_load_is_served_if_all_smaller_ones_are() -> None:
    def at(*met: float) -> list[dict[str, float]]:
        return [{"rate_rps": 2.0**k, "both_percent": m} for k, m in enumerate(met)]

    assert capacity_rps(at(100.0, WITHIN_PERCENT, 89.0)) == 2.0
    assert capacity_rps(at(100.0, 50.0, 95.0)) == 1.0
    assert capacity_rps(at(50.0)) == 0.0
    assert capacity_rps(list(reversed(at(100.0, 50.0)))) == 1.0


def test_goodput_is_bounded_by_the_load_and_attainment_falls_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dense = replace(
        FAMILIES[0], quick=("serverlessllm", "dedicated"), quick_rates_rps=(0.01, 1.0),
        quick_requests=100,
    )  # fmt: skip
    monkeypatch.setattr(every_system, "FAMILIES", (dense,))
    computed = every_system.compute(QUICK)
    rows = {(r["system"], r["rate_rps"]): r for r in computed.tables["loads"].to_pylist()}
    for (_, rate), row in rows.items():
        assert 0.0 <= row["goodput_rps"] <= rate
        assert row["goodput_rps"] == pytest.approx(rate * row["both_percent"] / 100.0)
    # one GPU for six models queues their starts; a GPU each starts none
    assert rows["serverlessllm", 1.0]["both_percent"] < 50.0
    assert rows["serverlessllm", 0.01]["both_percent"] > rows["serverlessllm", 1.0]["both_percent"]
    assert rows["dedicated", 1.0]["both_percent"] == 100.0
    assert rows["dedicated", 1.0]["switches"] == 0


def test_every_system_has_a_line_of_its_own() -> None:
    rows = [
        {"family": f.name, "system": s, "rate_rps": r, "goodput_rps": r / 2, "both_percent": 50.0}
        for f in FAMILIES
        for s in f.systems
        for r in f.rates_rps
    ]
    figure = draw_every_system({"loads": pa.Table.from_pylist(rows)}, "")
    for axes, family in zip(figure.axes[len(FAMILIES) :], FAMILIES, strict=True):
        lines = [line for line in axes.lines if line.get_label() in family.systems]
        assert len(lines) == len(family.systems)
        looks = {
            (line.get_color(), repr(line.get_linestyle()), line.get_marker()) for line in lines
        }
        assert len(looks) == len(lines)
