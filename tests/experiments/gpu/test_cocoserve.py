"""The section `cocoserve`, rehearsed at tiny sizes on a CPU."""

from __future__ import annotations

import pytest

from experiments.gpu import cocoserve
from experiments.gpu.cases import Context, Unmeasurable
from experiments.gpu.sections import DEFAULT, SECTIONS

TINY = Context(backend="reference", scale="tiny")


def test_it_runs_only_if_it_is_named_and_says_what_one_gpu_does_not_show() -> None:
    assert SECTIONS["cocoserve"].module == "experiments.gpu.cocoserve"
    assert "cocoserve" not in DEFAULT
    left = [c for c in cocoserve.cases("full") if c.spec["what"] in cocoserve.UNMEASURED]
    assert len(left) == len(cocoserve.UNMEASURED)
    for case in left:
        with pytest.raises(Unmeasurable, match="one GPU"):
            cocoserve.measure(case.spec, TINY)


@pytest.mark.slow
def test_every_question_has_an_answer_on_a_cpu() -> None:
    rows = {
        c.spec["what"]: cocoserve.measure(c.spec, TINY)
        for c in cocoserve.cases("tiny") if c.spec["what"] not in cocoserve.UNMEASURED
    }  # fmt: skip
    (texts,) = rows["texts"]
    assert texts["equal"] == texts["texts"]
    assert texts["same_logits"] == texts["steps"]
    assert texts["operations"] > 0
    (spread,) = rows["spread"]
    assert min(spread["one_device_ms"], spread["spread_ms"], spread["two_groups_ms"]) > 0
    pieces = [row["pieces"] for row in rows["relayout"]]
    assert pieces == sorted(pieces, reverse=True)
    weights = {row["weight_bytes"] for row in rows["relayout"]}
    assert weights == {spread["copied_bytes"]}
    (host,) = rows["from host memory"]
    assert host["layer_bytes"] == spread["copied_bytes"] // spread["layers"]
    assert host["gbps"] > 0
