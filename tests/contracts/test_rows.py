"""Rows of Python objects are read and written as tables of NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from c2c.serving.rows import as_rows, new_row
from c2c.serving.state import REPORT_DTYPE


class _Tables(NamedTuple):
    report: Any


def test_a_table_of_rows_is_written_by_value_and_grows() -> None:
    table = np.zeros(2, REPORT_DTYPE)
    table["steps"] = 3, 4
    rows = as_rows(_Tables(table)).report
    row = new_row(REPORT_DTYPE, steps=7, hbm=0.5)
    rows[1] = row
    row.steps = 8
    assert rows.steps.tolist() == [3, 7]
    kept = rows.copy()
    rows[0].steps = 1
    assert [r.steps for r in kept] == [3, 7]
    assert [r.steps for r in rows.grown(1)] == [1, 7, 0]
    assert np.asarray(rows).dtype == REPORT_DTYPE
    with pytest.raises(AttributeError):
        rows.nothing  # noqa: B018
    with pytest.raises(AttributeError):
        row.nothing = 1
