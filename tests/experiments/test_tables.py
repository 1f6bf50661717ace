"""Tables of a terminal keep their numbers whole at any width."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from experiments.tables import Name, print_table


def printed(width: int, names: list[str], numbers: list[str]) -> str:
    def draw(without: frozenset[str]) -> Table:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=0)
        shown = [c for c in ("p50", "p95", "goodput") if c not in without]
        table.add_column("name", no_wrap=True)
        for column in shown:
            table.add_column(column, no_wrap=True, justify="right")
        for name in names:
            table.add_row(Name(name), *numbers[: len(shown)])
        return table

    file = io.StringIO()
    print_table(Console(file=file, width=width), draw, spare=("p95", "goodput"))
    return file.getvalue()


@pytest.mark.parametrize(("width", "columns"), [(80, 3), (40, 2), (27, 1), (5, 1)])
def test_columns_are_left_out_in_their_order(width: int, columns: int) -> None:
    text = printed(width, ["llama-3-8b-000"], ["1,234,567"] * 3)
    assert text.count("1,234,567") == columns
    assert "p50" in text
    assert ("…" in text) == (width < 27)


@given(
    width=st.integers(10, 120),
    name=st.text("abc-", min_size=13, max_size=60).map("first{}last".format),
    number=st.integers(1000, 10**9),
)
def test_no_number_is_cut(width: int, name: str, number: int) -> None:
    text = printed(width, [name, "b"], [f"{number:,}"] * 3)
    assert text.count(f"{number:,}") in (2, 4, 6)
    assert "first" in text
    assert "last" in text  # a name is shortened in its middle
    (row,) = (line.strip() for line in text.splitlines() if "first" in line)
    assert name in row or len(row.split()[0]) < len(name)
    assert all(line == line.rstrip() for line in text.splitlines())
