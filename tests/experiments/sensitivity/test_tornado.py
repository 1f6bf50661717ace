"""Headlines and what moves them."""

from __future__ import annotations

import pytest

from experiments.c2cserve import fig6
from experiments.figure import Context
from experiments.figures.sensitivity import draw_takes, draw_tornado
from experiments.sensitivity import changed, chip_knobs, constant_knobs, tornado

QUICK = Context(profile="quick", link_variant="measured", seeds=(0,))


CHIP = ("link rate", "HBM rate", "SMs", "tensor-core peak", "disk rate")
CONSTANTS = ("link_efficiency", "mma_efficiency", "reduce_gbps_per_sm")
# Headline -> what its value does as each number grows: -1 falls, 1 rises, 0 stays.
TIME = dict.fromkeys((*CHIP[:-1], *CONSTANTS), -1) | {"disk rate": 0}
SIGNS = {
    **dict.fromkeys(
        ("TTFT, 8B streamed, whole chip", "TPOT, 8B streamed, whole chip",
         "TTFT, Qwen3-30B streamed", "TPOT, 3B on a seventh"), TIME),
    "TPOT, streamed over resident": {"link rate": -1, "link_efficiency": -1, "HBM rate": 1,
                                     "disk rate": 0},
    # more of the link helps the dataflow that reads weights again and again
    "Asym over SymGEMM, a seventh": {"link rate": 1, "link_efficiency": 1,
                                     "reduce_gbps_per_sm": -1, "disk rate": 0},
    "two that share the link, of their sum": {"link_efficiency": -1, "disk rate": 0},
}  # fmt: skip
# What must move its headline, not only never the wrong way.
MOVES = [(name, "link rate") for name in list(SIGNS)[:-1]] + [
    ("TPOT, streamed over resident", "HBM rate"),
    ("Asym over SymGEMM, a seventh", "reduce_gbps_per_sm"),
    ("two that share the link, of their sum", "link_efficiency"),
]
STARTS = {
    "cold start, ServerlessLLM over ours": {"disk rate": 1, "engine_init_s": -1,
                                            "sllm_init_dense_s": 1},
    "switch, ServerlessLLM over ours": {"switch_dense_s": -1, "sllm_init_dense_s": 1,
                                        "disk rate": 0, "engine_init_s": 0},
}  # fmt: skip


@pytest.mark.slow
def test_headlines_move_the_right_way_with_what_they_are_made_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tornado, "chip_knobs", lambda: [k for k in chip_knobs() if k.name in CHIP])
    monkeypatch.setattr(tornado, "QUICK", CONSTANTS)
    found = tornado.compute(QUICK)
    rows = found.tables["headlines"].to_pylist()
    assert {r["knob"] for r in rows} == {*CHIP, *CONSTANTS}
    assert {r["headline"] for r in rows} == set(SIGNS)
    ratio = {(r["headline"], r["knob"], r["factor"] > 1): r["ratio"] for r in rows}
    for name, signs in SIGNS.items():
        for knob, sign in signs.items():
            for more in (False, True):
                change = (ratio[name, knob, more] - 1.0) * (1 if more else -1)
                assert change == 0.0 if sign == 0 else sign * change >= -1e-9, (name, knob, more)
    for name, knob in MOVES:
        assert max(abs(ratio[name, knob, more] - 1.0) for more in (False, True)) > 0.1, (name, knob)
    tpot = "TPOT, 8B streamed, whole chip"
    assert ratio[tpot, "link rate", True] == pytest.approx(0.5, abs=0.05)
    assert ratio[tpot, "link rate", False] == pytest.approx(2.0, abs=0.1)
    capped = max(r["factor"] for r in rows if r["knob"] == "link_efficiency")
    (knob,) = [k for k in constant_knobs() if k.name == "link_efficiency"]
    assert capped == pytest.approx(1.0 / knob.value)  # a share does not go above 1
    assert len(found.report) == 2 + len(CHIP) + len(CONSTANTS)
    assert draw_tornado(found.tables, found.caption).axes
    assert len(found.caption.split()) <= 50


@pytest.mark.slow
def test_headlines_of_starts_move_the_right_way() -> None:
    knobs = {k.name: k for k in (*chip_knobs(), *constant_knobs())}
    base = tornado.starts(QUICK)
    assert set(base) == set(STARTS)
    for name in dict.fromkeys(knob for signs in STARTS.values() for knob in signs):
        for factor in (0.5, 2.0):
            with changed(knobs[name], factor):
                after = tornado.starts(QUICK)
            for headline, signs in STARTS.items():
                if name in signs:
                    change = (after[headline][0] / base[headline][0] - 1.0) * (factor - 1.0)
                    sign = signs[name]
                    right = abs(change) < 1e-9 if sign == 0 else sign * change > 1e-3
                    assert right, (headline, name, factor)


def test_pictures_of_misses_have_a_line_for_each() -> None:
    import pyarrow as pa

    shown = {"claim": "c2cserve.fig6b.gap_chunk512", "published": "2", "ours": "29.6",
             "tried": 3, "matter": 2}  # fmt: skip
    none = {"knob": None, "factor": None, "before": None, "after": None}
    hit = {"knob": "link rate", "factor": 4.5, "before": 450.0, "after": 2000.0}
    table = pa.Table.from_pylist([shown | hit, shown | {"claim": "c2cserve.fig3.x"} | none])
    figure = draw_takes({"takes": table}, "caption")
    texts = [t.get_text() for axes in figure.axes for t in axes.texts]
    assert any("link rate x 4.5" in t for t in texts)
    assert any("no number alone" in t for t in texts)
    assert draw_takes({"takes": table.slice(0, 0)}, "caption").axes


def test_the_demand_behind_a_printed_gap_is_said() -> None:
    notes = {r.claim_id: r.note for r in fig6.compute(QUICK).results}
    assert "each draws 323 GB/s" in notes["c2cserve.fig6b.gap_full_chunk"]  # 375 / 2 / 0.58
    assert "each draws 191 GB/s" in notes["c2cserve.fig6b.gap_chunk512"]
