"""Headlines and what moves them."""

from __future__ import annotations

import pytest

from experiments.c2cserve import fig6, tornado
from experiments.c2cserve.context import Context
from experiments.figures.sensitivity import draw_takes, draw_tornado
from experiments.sensitivity import chip_knobs, constant_knobs

QUICK = Context(profile="quick", link_variant="measured", seeds=(0,))


def test_headlines_move_with_what_they_are_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    chip = [k for k in chip_knobs() if k.name in {"link rate", "disk rate"}]
    monkeypatch.setattr(tornado, "chip_knobs", lambda: chip)
    monkeypatch.setattr(tornado, "QUICK", ("link_efficiency",))
    found = tornado.compute(QUICK)
    rows = found.tables["headlines"].to_pylist()
    names = {r["knob"] for r in rows}
    assert names == {"link rate", "disk rate", "link_efficiency"}
    ratio = {(r["headline"], r["knob"], r["factor"] > 1): r["ratio"] for r in rows}
    tpot = "TPOT, 8B streamed, whole chip"
    assert ratio[tpot, "link rate", True] == pytest.approx(0.5, abs=0.05)
    assert ratio[tpot, "link rate", False] == pytest.approx(2.0, abs=0.1)
    assert ratio[tpot, "disk rate", True] == 1.0
    capped = max(r["factor"] for r in rows if r["knob"] == "link_efficiency")
    (knob,) = [k for k in constant_knobs() if k.name == "link_efficiency"]
    assert capped == pytest.approx(1.0 / knob.value)  # a share does not go above 1
    assert len(found.report) == 2 + len(names)
    assert draw_tornado(found.tables, found.caption).axes


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
