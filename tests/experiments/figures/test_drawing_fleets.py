"""The comparisons of systems are drawn from tables alone, of either profile."""

import io
from typing import Any

import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from experiments.c2cserve import fleets
from experiments.figures.fleets import (
    LINES,
    draw_fleets,
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
