"""Every figure is drawn from tables alone; warnings (missing glyphs, bad layouts) are errors."""

import io
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from experiments.figure import Context
from experiments.figures.run import draw_run
from experiments.figures.style import canvas, finish, look
from experiments.papers.c2cserve import fig2, fig5, fig6, fig8, projection, table2
from experiments.papers.c2cserve.drawing import baselines, gemm, hardware, serving, workload

QUICK = Context(profile="quick", link_variant="datasheet", seeds=(0,))


def drawn(figure: Figure) -> bytes:
    held = io.BytesIO()
    figure.savefig(held, format="png")
    return held.getvalue()


def texts(figure: Figure) -> str:
    return "\n".join(t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text")))


def overprinted(figure: Figure) -> list[tuple[str, str]]:
    """Return the labels that lie on one another."""
    figure.draw_without_rendering()
    result = []
    for axes in figure.axes:
        labels = [t for t in axes.findobj(Text) if t.get_visible() and t.get_text().strip()]
        boxes = [(t.get_text(), t.get_window_extent().shrunk(0.9, 0.9)) for t in labels]
        result += [(a, b) for (a, p), (b, q) in combinations(boxes, 2) if a != b and p.overlaps(q)]
    return result


def test_overprinted_labels_would_be_seen() -> None:
    figure, (axes,) = canvas(4, 3)
    axes.text(0.5, 0.5, "one")
    axes.text(0.51, 0.5, "other")
    assert overprinted(figure) == [("one", "other")]


@pytest.mark.parametrize(
    ("module", "draw"),
    [
        (table2, hardware.draw_table2),
        (projection, hardware.draw_projection),
        (fig2, workload.draw_fig2),
        (fig5, gemm.draw_fig5),
        (fig6, workload.draw_fig6),
    ],
)
def test_analytic_figures(module: object, draw: object) -> None:
    computed = module.compute(QUICK)  # type: ignore[attr-defined]
    with look():
        figure = draw(computed.tables, computed.caption)  # type: ignore[operator]
        assert drawn(figure).startswith(b"\x89PNG")
    assert computed.caption[:20] in texts(figure)


@pytest.mark.parametrize("seeds", [1, 3])
def test_trace_replay_with_failed_requests(seeds: int) -> None:
    windows, totals, curves = [], [], []
    rng = np.random.default_rng(0)
    for system, level in (("C2CServe", 0.001), ("ServerlessLLM", 300.0), ("plus", 0.01)):
        for seed in range(seeds):
            windows += [
                {"system": system, "seed": seed, "start_h": window * 0.5, "hours": 0.5,
                 "requests": 50, "counts": True, "p50_s": level}
                for window in (0, 1, 2, 7, 8)
            ]  # fmt: skip
            ttft = np.sort(level * rng.uniform(0.9, 1.1, 201))
            ttft[190:] = np.inf
            curves += [
                {"system": system, "seed": seed, "percent": float(i / 2), "ttft_s": float(value)}
                for i, value in enumerate(ttft)
            ]
            totals.append({"system": system, "seed": seed, "curve_p5_s": 0.9 * level,
                           "curve_p95_s": 1.1 * level})  # fmt: skip
    made = {"windows": windows, "summary": totals, "ttft": curves}
    tables = {name: pa.Table.from_pylist(rows) for name, rows in made.items()}
    with look("ServerlessLLM is slow"):
        figure = serving.draw_fig12(tables, "caption")
        assert drawn(figure)
    assert "ServerlessLLM is slow" in texts(figure)
    curves_of_ttft, bands = figure.axes[1], figure.axes[2]
    assert [line.get_label() for line in curves_of_ttft.lines[:-1]] == [
        "C2CServe", "ServerlessLLM", "plus",
    ]  # fmt: skip
    low, high = bands.get_xlim()
    assert low < 0.001
    assert high > 300.0
    assert sum(line.get_marker() == "D" for line in bands.lines) == 2  # plus has no printed band


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


def test_fig_8_and_14_print_no_label_on_another() -> None:
    rows = [
        {"panel": panel, "variant": variant, "seed": 0, "ttft_p99_s": p99, "published_p99_s": paper,
         "tpot_attainment_percent": 100.0}
        for panel, variant, p99, paper in (
            ("all", "full system", 0.62, 0.64),
            ("placement", "bandwidth aware", 0.05, 0.64),
            ("placement", "random", 25.0, 1.2),
            ("chunk", "512", 0.9, 0.95),
            ("chunk", "2048", 88.0, 1.3),
            ("alpha", "static 1", 1.1, 1.1),
            ("alpha", "roofline (ours)", 0.4, None),
        )
    ]  # fmt: skip
    with look():
        computed = fig8.compute(QUICK)
        assert overprinted(gemm.draw_fig8(computed.tables, computed.caption)) == []
        tables = {"ablations": pa.Table.from_pylist(rows)}
        assert overprinted(serving.draw_fig14(tables, "caption")) == []


@pytest.mark.parametrize("requests", [1, 3, 40])
def test_a_short_trace_shows_its_requests(requests: int) -> None:
    at = np.linspace(0.0, 10.0, requests)
    columns = {
        "arrival_s": at, "first_token_s": at + 0.5, "finished_s": at + 2.0,
        "output_tokens": np.full(requests, 9), "ttft_slo_s": np.ones(requests),
        "tpot_slo_s": np.full(requests, 0.2),
    }  # fmt: skip
    names = pa.array(["m"] * requests, pa.string()).dictionary_encode()
    table = pa.table(columns | {"model": names})
    with look():
        figure = draw_run(table, "caption")["ttft_over_time"]
        assert drawn(figure)
    points = [line for line in figure.axes[1].lines if line.get_label() == "request"]
    assert [len(line.get_xdata()) for line in points] == [requests]
    median = next(line for line in figure.axes[1].lines if line.get_label() == "median")
    assert np.isfinite(np.asarray(median.get_ydata(), float)).any()


def test_long_captions_get_their_room() -> None:
    with look():
        short, (axes,) = canvas(6, 4)
        finish(short, "title", "one line")
        long, (other,) = canvas(6, 4)
        finish(long, "title", "many words " * 60)
        for figure in (short, long):
            figure.draw_without_rendering()
    assert other.get_position().y0 > axes.get_position().y0


def test_lone_requests_show_printed_ratios_as_times() -> None:
    rows = [
        {"model": "llama-3-8b", "system": system, "ttft_s": ttft_s, "tpot_s": 0.05,
         "out_of_memory": False, "published_ttft_s": printed_s, "published_tpot_s": None}
        for system, ttft_s, printed_s in (("c2cserve", 0.2, None), ("aegaeon", 0.015, 0.76))
    ]  # fmt: skip
    with look():
        figure = baselines.draw_fig9({"latency": pa.Table.from_pylist(rows)}, "caption")
        assert drawn(figure)
    marked = [list(line.get_ydata()) for axes in figure.axes for line in axes.lines
              if line.get_marker() == "D"]  # fmt: skip
    assert [0.76] in marked
    assert "paper's ratio" in texts(figure)
