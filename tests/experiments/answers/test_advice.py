"""The answer's sentence, table and picture."""

from __future__ import annotations

from io import StringIO
from typing import Any

import numpy as np
from rich.console import Console

from experiments.answers.advice import advice, print_fleets
from experiments.answers.ranking import LOADS, in_order, told
from experiments.figures.advise import draw_advice


def fleet(chip: str, usd: float, load: float | None = 2.0, **more: Any) -> dict[str, Any]:
    result = {
        "chips": 2, "chip": chip, "layout": "4x24gb", "system": "serverlessllm_fast",
        "spoken": f"2 x {chip}", "usd_per_hour": usd, "usd_per_million_tokens": 12.345,
        "kwh_per_million_tokens_at_most": 1.234, "met": 0.99671, "met_half": 0.0011,
        "ttft_p99_s": 12.345, "tpot_p99_s": 0.1496, "error": 0.164, "error_of": "measured",
        "serves_if_slower": True, "binds": None, "requests": 100, "arm": 0,
    } | more  # fmt: skip
    if load is not None:
        result |= {"serves_load": load, "breaks_at_load": None if load == 8.0 else 2 * load}
    return result


def test_no_number_is_shortened_at_80_columns() -> None:
    rows = [fleet("rtx_pro_6000", 123.45), fleet("gh200", 2.29, 8.0)]
    for width in (80, 120):
        text = StringIO()
        print_fleets(Console(file=text, width=width), rows, [])
        said = text.getvalue()
        assert max(map(len, said.splitlines())) <= width
        for number in ("123.45", "99.67 ± 0.11", "2x", ">= 8x", "2 x gh200"):
            assert number in said
        assert "…" not in said
        assert ("12.345" in said) == (width == 120)


def test_fleets_of_one_price_are_in_order_of_what_they_have_left() -> None:
    first = fleet("a", 1.0, 4.0)
    second = fleet("b", 1.0, 2.0)
    third = fleet("c", 1.0, 2.0, ttft_p99_s=20.0)
    fourth = fleet("d", 1.0, 8.0, serves_if_slower=False)
    fifth = fleet("e", 1.1, 8.0)
    assert in_order([fifth, third, fourth, second, first]) == [first, second, third, fourth, fifth]


def test_the_best_of_each_chip_and_all_ties_of_a_named_one_are_told() -> None:
    fleets = [fleet("a", 1.0) for _ in range(12)]
    fleets += [fleet("a", 1.5), fleet("b", 2.0), fleet("b", 2.0), fleet("c", 3.0), fleet("c", 3.0)]
    assert [one["chip"] for one in told(fleets, {"b"})] == ["a"] * 12 + ["b", "b", "c"]


def test_the_sentence_has_the_margins() -> None:
    said = advice([fleet("gh200", 2.29)], [], kinds=20, most=64, goal=0.99)
    assert said == (
        "answer: 2 x gh200 for 2.29 USD/h is the cheapest of 20 kinds of fleets: 99.67 % of the "
        "requests on target (goal 99 %); it serves 2 times the load and fails at 4; it still "
        "serves if every step takes 16.4 % longer (measured)"
    )


def test_the_picture_has_a_mark_a_fleet_and_the_name_of_each_chip() -> None:
    marks = [fleet("gh200", 2.29), fleet("gh200", 2.29), fleet("l40s", 3.0, 8.0)]
    failing = [fleet("a100_80", 5.0, None)]
    figure = draw_advice([*marks, *failing], loads=LOADS, title="t", caption="c")
    (axes,) = figure.axes
    points = [line for line in axes.lines if np.size(line.get_xdata()) == 1]
    assert [line.get_marker() for line in points] == ["o", "o", "o", "x"]
    assert {text.get_text() for text in axes.texts} == {"2 x gh200", "2 x l40s", "2 x a100_80"}
    ticks = [label.get_text() for label in axes.get_yticklabels()]
    assert (ticks[0], ticks[1], ticks[-1]) == ("fails", "1x", "8x or more")
    (frontier,) = [line for line in axes.lines if line.get_label() == "most for the price"]
    assert np.asarray(frontier.get_ydata()).tolist() == [2.0, 8.0, 8.0]
