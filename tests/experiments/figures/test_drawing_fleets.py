"""The comparisons of systems are drawn from tables alone, of either profile."""

import io
from typing import Any

import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from experiments.c2cserve import fleets
from experiments.figures.fleets import (
    LINES,
    draw_ablation_plus,
    draw_fleets,
    draw_one_service,
)
from experiments.figures.style import look


def drawn(figure: Figure) -> bytes:
    held = io.BytesIO()
    figure.savefig(held, format="png")
    return held.getvalue()


def fleet_row(
    system: str, compression: float, models: int, draw_gbps: float | None, both: float
) -> dict[str, Any]:
    return {
        "system": system, "compression": compression, "models": models, "draw_gbps": draw_gbps,
        "both_percent": both, "ttft_p99_s": 0.3,
    }  # fmt: skip


def test_every_system_has_a_line() -> None:
    assert list(LINES) == list(fleets.SYSTEMS)
    assert len(set(LINES.values())) == len(LINES)


@pytest.mark.parametrize("caps", [(), (54.0, 110.0)])
def test_fleets(caps: tuple[float, ...]) -> None:
    rows = [
        fleet_row(system, compression, models, draw, both)
        for system, both in (("plus", 100.0), ("layer staging", 83.0))
        for compression, models, draw in (
            *((c, m, None) for c in (3.0, 8.0) for m in (6, 16)),
            *((8.0, 16, cap) for cap in caps),
        )
    ]
    with look():
        figure = draw_fleets({"systems": pa.Table.from_pylist(rows)}, "caption")
        assert drawn(figure).startswith(b"\x89PNG")
    columns = 2 + bool(caps)
    assert len(figure.axes) == 2 * columns
    missed = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    assert list(missed["layer staging"]) == [17.0, 17.0]
    assert list(missed["plus"]) == [0.01, 0.01]  # none missed: on the axis
    if caps:
        assert [t.get_text() for t in figure.axes[-1].get_xticklabels()] == ["54", "110", "own"]
        assert list(figure.axes[-1].lines[0].get_xdata()) == [0, 1, 2]


def test_parts_show_mean_and_range_over_seeds() -> None:
    rows = [
        {"point": point, "variant": variant, "seed": seed, "both_percent": 90.0 + 2 * seed,
         "ttft_p99_s": 0.2}
        for point in ("a", "b")
        for variant in ("plus", "one engine a slice")
        for seed in (0, 1)
    ]  # fmt: skip
    with look():
        figure = draw_ablation_plus({"ablations": pa.Table.from_pylist(rows)}, "caption")
        assert drawn(figure)
    first = figure.axes[0]
    assert any(list(line.get_xdata()) == [90.0, 92.0] for line in first.lines)
    assert any(list(line.get_xdata()) == [91.0] for line in first.lines)
    assert [t.get_text() for t in first.get_yticklabels()] == ["plus", "one engine a slice"]


def test_one_service_says_which_slices_worked() -> None:
    rows = [
        {"setting": "8B, 7x12gb", "system": system, "ttft_p50_s": 0.4, "ttft_p99_s": 6.0,
         "both_percent": 80.0, "slices_used": used, "slices": 7, "seed": 0}
        for system, used in (("plus", 7), ("letter", 1))
    ]  # fmt: skip
    with look():
        figure = draw_one_service({"services": pa.Table.from_pylist(rows)}, "caption")
        assert drawn(figure)
    assert {"7 of 7", "1 of 7"} <= {t.get_text() for t in figure.axes[1].texts}
