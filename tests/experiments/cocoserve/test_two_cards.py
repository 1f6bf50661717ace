"""Ways to use two cards, against what must hold."""

from __future__ import annotations

import pytest

from c2c.hardware import load_node
from c2c.models import load_spec
from c2c.systems.cocoserve import devices_of
from experiments.papers.cocoserve.batch_server import DEFAULTS, MODEL, NODE, rows_that_fit
from experiments.papers.cocoserve.two_cards import WAYS, most_rows, seconds_of

DEVICES = devices_of(load_spec(MODEL), load_node(NODE), most_rows=120)


def test_sequences_that_two_cards_hold() -> None:
    most = most_rows(DEVICES, 341)
    assert tuple(most) == WAYS
    # keys and values grow by concatenation there, which takes an eightieth more
    assert most["one card"] in (rows_that_fit(DEFAULTS), rows_that_fit(DEFAULTS) + 1)
    assert most["second instance"] == pytest.approx(most["40 layers copied"], abs=1)
    assert most["one card"] < most["20 layers copied"] < most["40 layers copied"]
    assert most["pipeline"] == most["tensor parallel"] > most["40 layers copied"]


@pytest.mark.parametrize("rows", [2, 54, 108])
def test_copies_of_all_layers_are_a_second_instance(rows: int) -> None:
    found = {way: step(rows) for way, step in seconds_of(DEVICES, 213).items()}
    assert found["40 layers copied"] == pytest.approx(found["second instance"], rel=0.005)
    assert found["40 layers copied"] <= found["20 layers copied"] <= found["one card"]
    assert found["tensor parallel"] < found["pipeline"]
    # half of the weights are read a step at most, and something is sent
    assert found["tensor parallel"] > found["one card"] / 2
