"""Predicted numbers in one picture."""

from __future__ import annotations

from experiments.claims import Row, answer, claim, fidelity_rows, load_claims
from experiments.figures.claims import draw_claims
from experiments.figures.style import BLUE, VERMILION

RATIOS = {
    "medusa.fig7a.vs_vllm": 1.1,
    "medusa.fig7b.coldstart": 1.1,
    "medusa.fig3.graph_speedup_max": 0.5,
    "tessera.fig8b.vs_af": 40.0,
    "medusa.abstract.loading_reduction": 1.0,  # a repeat
}


def rows_of(ratios: dict[str, float]) -> list[Row]:
    found = [answer(name, claim(name).value * ratio) for name, ratio in ratios.items()]
    return fidelity_rows(load_claims(), found, frozenset())


def test_each_predicted_number_is_a_dot_at_its_ratio() -> None:
    (axes,) = draw_claims(rows_of(RATIOS)).axes
    dots = [line for line in axes.lines if line.get_marker() in ("o", "<", ">")]
    at = {
        (round(dot.get_xdata()[0], 6), dot.get_marker(), dot.get_color()): dot.get_ydata()[0]
        for dot in dots
    }
    assert set(at) == {(1.1, "o", BLUE), (0.5, "o", VERMILION), (20.0, ">", VERMILION)}
    assert len(dots) == 4
    same = [dot.get_ydata()[0] for dot in dots if dot.get_color() == BLUE]
    assert same[0] != same[1]  # equal ratios are stacked
    assert [text.get_text() for text in axes.get_yticklabels()] == ["MEDUSA", "Tessera"]
