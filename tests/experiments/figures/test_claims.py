"""All claims in one picture."""

from __future__ import annotations

from experiments.claims import Result, claim, fidelity_rows, load_claims
from experiments.figures.claims import claims_picture, draw_claims


def test_each_number_is_a_point_filled_where_it_counts() -> None:
    answers = [
        Result(claim_id=name, ours=ours, unit=claim(name).unit, sample=sample)
        for name, ours, sample in (
            ("c2cserve.fig4b.asym.c2c_bytes", 0.134, "out-of-sample"),
            ("c2cserve.fig9.dense.tpot_vs_aegaeon", 0.1, "in-sample"),
            ("c2cserve.fig4b.sym.c2c_bytes", 5.37, "identity"),
            ("medusa.fig7a.vs_vllm", 42.0, "out-of-sample"),
            ("medusa.abstract.loading_reduction", 42.0, "out-of-sample"),  # a repeat
        )
    ]  # fmt: skip
    rows = fidelity_rows(load_claims(), answers, frozenset())  # type: ignore[arg-type]
    (axes,) = draw_claims(rows).axes
    points = [c for c in axes.collections if len(c.get_offsets()) and c.get_sizes().size]
    filled = [c for c in points if len(c.get_facecolors())]
    hollow = [c for c in points if not len(c.get_facecolors())]
    assert sum(len(c.get_offsets()) for c in filled) == 2
    assert sum(len(c.get_offsets()) for c in hollow) == 2
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["c2cserve", "medusa"]
    assert claims_picture(rows) == claims_picture(rows)


def test_no_number_is_no_point() -> None:
    assert claims_picture(fidelity_rows(load_claims(), [], frozenset())).startswith(b"RIFF")
