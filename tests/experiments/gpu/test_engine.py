"""The section of the live engine at tiny sizes on a CPU, and what it must fail at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.gpu import engine
from experiments.gpu.cases import Context
from experiments.gpu.sections import SECTIONS

TINY = Context(backend="reference", scale="tiny")


@pytest.mark.slow
def test_texts_by_turns_are_those_drawn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SECTIONS["engine"].module == "experiments.gpu.engine"
    texts = next(c.spec for c in engine.cases("tiny") if c.spec.get("ahead") == 1)
    for row in engine.measure(texts, TINY):
        assert row["equal"] == row["texts"] == len(engine.PROMPTS)
    turns = next(c.spec for c in engine.cases("tiny") if c.spec["what"] == "turns")
    (row,) = engine.measure(turns, TINY)
    assert row["step_ms"] > 0
    step = engine._Client.step

    def wrong(client: engine._Client) -> None:
        step(client)
        if client.at_once > 1 and client.got[2]:
            client.got[2][0] = -1

    monkeypatch.setattr(engine._Client, "step", wrong)
    with pytest.raises(AssertionError, match="texts differ"):
        engine.measure(texts, replace(TINY, seed=1))
