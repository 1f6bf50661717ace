"""Every figure is drawn from tables alone; warnings (missing glyphs, bad layouts) are errors."""

import io

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from experiments.c2cserve import alpha_map, fig2, fig5, fig6, projection, table2
from experiments.c2cserve.context import Context
from experiments.figures import gemm, hardware, serving, workload
from experiments.figures.style import canvas, finish, look

QUICK = Context(profile="quick", link_variant="datasheet", seeds=(0,))


def drawn(figure: Figure) -> bytes:
    held = io.BytesIO()
    figure.savefig(held, format="png")
    return held.getvalue()


def texts(figure: Figure) -> str:
    return "\n".join(t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text")))


@pytest.mark.parametrize(
    ("module", "draw"),
    [
        (table2, hardware.draw_table2),
        (projection, hardware.draw_projection),
        (fig2, workload.draw_fig2),
        (fig5, gemm.draw_fig5),
        (fig6, workload.draw_fig6),
        (alpha_map, gemm.draw_alpha_map),
    ],
)
def test_analytic_figures(module: object, draw: object) -> None:
    computed = module.compute(QUICK)  # type: ignore[attr-defined]
    with look():
        figure = draw(computed.tables, computed.caption)  # type: ignore[operator]
        assert drawn(figure).startswith(b"\x89PNG")
    assert computed.caption[:20] in texts(figure)


@pytest.mark.parametrize("seeds", [1, 3])
def test_trace_replay_with_gaps(seeds: int) -> None:
    rows, totals = [], []
    rng = np.random.default_rng(0)
    for system, level in (("C2CServe", 0.1), ("ServerlessLLM", 3.0)):
        for seed in range(seeds):
            for window in (0, 1, 2, 7, 8):
                p50 = level * float(rng.uniform(0.9, 1.1))
                rows.append(
                    {"system": system, "seed": seed, "start_h": window * 0.5, "hours": 0.5,
                     "requests": 50, "p5_s": p50 / 2, "p50_s": p50, "p95_s": 2 * p50}
                )  # fmt: skip
            totals.append(
                {"system": system, "seed": seed, "ttft_p50_s": level, "ttft_p95_s": 2 * level,
                 "within_target_percent": 97.0}
            )  # fmt: skip
    tables = {"windows": pa.Table.from_pylist(rows), "summary": pa.Table.from_pylist(totals)}
    with look():
        figure = serving.draw_fig12(tables, "caption")
        assert drawn(figure)
    assert "97.0% within 1 s" in texts(figure)
    assert "paper" in texts(figure)


def test_ablations_show_the_range_over_seeds_and_the_printed_value() -> None:
    rows = [
        {"panel": panel, "variant": variant, "seed": seed, "ttft_p99_s": 0.6 + 0.1 * seed,
         "tpot_attainment_percent": 99.0,
         "published_p99_s": 0.64 if variant in ("full system", "bandwidth aware") else None}
        for panel, variant in (
            ("all", "full system"),
            ("placement", "bandwidth aware"),
            ("placement", "random"),
            ("chunk", "512"),
            ("alpha", "static 1"),
        )
        for seed in (0, 1, 2)
    ]  # fmt: skip
    with look():
        figure = serving.draw_fig14({"ablations": pa.Table.from_pylist(rows)}, "caption")
        assert drawn(figure)
    first = figure.axes[0]
    assert any(line.get_marker() == "D" for line in first.lines)
    whiskers = [line for line in first.lines if list(line.get_ydata()) == [0.6, 0.8]]
    assert whiskers


def test_long_captions_get_their_room() -> None:
    with look():
        short, (axes,) = canvas(6, 4)
        finish(short, "title", "one line")
        long, (other,) = canvas(6, 4)
        finish(long, "title", "many words " * 60)
        for figure in (short, long):
            figure.draw_without_rendering()
    assert other.get_position().y0 > axes.get_position().y0
