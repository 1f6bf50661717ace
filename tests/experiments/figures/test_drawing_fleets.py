"""The comparisons of systems are drawn from tables alone, of either profile."""

import io
from itertools import pairwise

import pyarrow as pa
from matplotlib.figure import Figure

from experiments.figures.style import label_ends, look
from experiments.papers.c2cserve.drawing.fleets import FEWEST_PERCENT, draw_fleets


def drawn(figure: Figure) -> bytes:
    held = io.BytesIO()
    figure.savefig(held, format="png")
    return held.getvalue()


def test_fleets_have_a_labelled_line_a_drawn_system() -> None:
    rows = [
        {"system": system, "compression": 8.0, "models": models, "is_drawn": drawn,
         "both_percent": both}
        for system, both, drawn in (
            ("c2cserve_plus", 100.0, True), ("mine", 83.0, True), ("layer staging", 50.0, False)
        )
        for models in (16, 6)
    ]  # fmt: skip
    with look():
        figure = draw_fleets({"systems": pa.Table.from_pylist(rows)}, "caption")
        assert drawn(figure).startswith(b"\x89PNG")
    (axes,) = figure.axes
    missed = [list(line.get_ydata()) for line in axes.lines]
    assert missed == [[FEWEST_PERCENT] * 2, [17.0, 17.0]]  # none missed: on the axis
    assert [t.get_text() for t in axes.get_xticklabels()] == ["6", "16"]
    assert {t.get_text() for t in axes.texts} == {"c2cserve_plus", "mine"}


def test_names_at_the_ends_of_lines_do_not_meet() -> None:
    with look():
        figure = Figure()
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1])
        label_ends(axes, [(1.0, 0.5 + 0.001 * n, f"line {n}", "black") for n in range(4)])
        assert drawn(figure)
    heights = sorted(text.get_window_extent().y0 for text in axes.texts)
    assert all(b - a > 10 for a, b in pairwise(heights))
