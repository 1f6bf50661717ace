"""The section `woven`, rehearsed at tiny sizes on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.gpu import woven
from experiments.gpu.cases import Context, Unmeasurable
from experiments.gpu.sections import DEFAULT, SECTIONS
from tests.pallas_kernels.interpreting import within

TINY = Context(backend="reference", scale="tiny")


def test_it_runs_only_if_it_is_named_and_says_what_one_gpu_does_not_show() -> None:
    assert SECTIONS["woven"].module == "experiments.gpu.woven"
    assert "woven" not in DEFAULT
    assert {8, 128} < {case.spec.get("rows") for case in woven.cases("full")}
    left = [c for c in woven.cases("full") if c.spec["what"] in woven.UNMEASURED]
    assert len(left) == len(woven.UNMEASURED)
    for case in left:
        with pytest.raises(Unmeasurable, match="one GPU"):
            woven.measure(case.spec, TINY)


def test_every_question_has_an_answer_on_a_cpu() -> None:
    for case in woven.cases("tiny"):
        if case.spec["what"] in woven.UNMEASURED:
            continue
        (row,) = woven.measure(case.spec, TINY)
        if case.spec["what"] == "results":
            assert row["tasks"] == 6
            assert row["same"] == row["elements"]
        else:
            assert row["time_s"] > 0
        if case.spec["what"] == "send":
            assert row["bytes"] == 2 * (4 + 2 + 2) * 64 * 2
            assert row["gbps"] > 0


@pytest.mark.slow
def test_the_same_with_the_kernels_themselves() -> None:
    context = replace(TINY, backend="interpret")
    for case in woven.cases("tiny"):
        if case.spec["what"] in ("results", "poll", "receive", "all three"):
            (row,) = within(lambda case=case: woven.measure(case.spec, context))
            assert row.get("largest_error", 0.0) <= 2**-6


def test_a_wrong_result_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (1.0, float("nan")):
        monkeypatch.setattr(woven, "decode_attention", lambda q, *_, w=wrong, **__: q * w)
        with pytest.raises(AssertionError, match="results differ by"):
            woven.measure({"what": "results", "rows": 2, "splits": 1}, TINY)
