"""Streamed decode beside a public prototype: an outside check that nothing was fitted to."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from c2c.errors import SettingError
from experiments.experiment import read_experiment
from experiments.figure import Computed, Context
from experiments.figures.style import look
from experiments.papers.c2cserve.drawing.baselines import draw_streaming
from experiments.papers.c2cserve.streaming import Streaming, compute, streamed

CONTEXT = Context(profile="quick", link_variant="measured", seeds=(0,))
EXPERIMENT = read_experiment(Streaming, "c2cserve/streaming")


@functools.cache
def computed() -> Computed:
    return compute(CONTEXT)


def ratios(run: str) -> dict[str, list[float]]:
    result: dict[str, list[float]] = {}
    for row in computed().tables["streaming"].to_pylist():
        if row["run"] == run:
            result.setdefault(row["model"], []).append(row["ratio"])
    return result


def test_large_models_take_the_measured_time_whatever_the_slices() -> None:
    for model, found in ratios("large").items():
        assert len(found) == 3
        assert all(0.92 < ratio < 1.08 for ratio in found), model


def test_small_models_lack_the_same_milliseconds_of_the_host() -> None:
    """4 to 7 ms a token at any size: an engine without graphs, whose host is not in the figure."""
    rows = [r for r in computed().tables["streaming"].to_pylist() if r["run"] == "small"]
    left = [r["measured_ms"] - r["ours_ms"] for r in rows]
    assert len(left) == 9
    assert all(4.0 < ms < 7.0 for ms in left)


def test_the_link_bounds_what_streams_at_once() -> None:
    alone = replace(EXPERIMENT, requests=8, rate_rps=0.1)
    one = streamed(["qwen3-8b"], "3x2g.24gb", alone, "measured")["qwen3-8b"]
    crowd = streamed(["qwen3-8b", "qwen3-14b", "qwen3-32b"], "3x2g.24gb", EXPERIMENT, "measured")
    assert crowd["qwen3-8b"] > 2.0 * one
    wide = streamed(["qwen3-8b", "qwen3-14b", "qwen3-32b"], "3x2g.24gb", EXPERIMENT, "datasheet")
    assert wide["qwen3-8b"] == pytest.approx(crowd["qwen3-8b"] * 375 / 450, rel=0.03)


def test_a_layout_with_too_few_slices_is_refused() -> None:
    with pytest.raises(SettingError):
        streamed(["qwen3-8b", "qwen3-4b"], "1x12gb", EXPERIMENT, "measured")


def test_it_is_drawn() -> None:
    found = computed()
    with look():
        figure = draw_streaming(found.tables, found.caption)
        figure.draw_without_rendering()
    assert len(figure.axes) == len(EXPERIMENT.runs)
    assert found.finding
    assert found.report[0][0] == "run"
