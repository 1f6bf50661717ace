"""Elements of arrays and errors of calls, in code that is written as the package's own is."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from c2c.policies import jitable
from c2c.policies.decision import OPTIONS

NJIT: Any = numba.njit  # Numba brings no types for it


def ours(function: Any) -> Any:
    """Return a function compiled as one of the package's."""
    function.__module__ = "c2c.test_elements"
    return NJIT(**OPTIONS)(function)


def read(row: Any, table: Any, cube: Any, rows: Any, k: Any, j: int) -> Any:
    found = row[k] + row[-1] + row[0] + table[k, j] * table[-1, -2] + cube[j, k, -1] + cube[0, 0, 0]
    found += rows[k].price + rows[-1].count + rows.count[j] + table[k][j] + row[1:3][0]
    return found + len(row) * 100 + len(table) * 10 + len(cube) + len(rows)


def write(row: Any, table: Any, flags: Any, rows: Any, k: int) -> int:
    row[k] = 3
    row[-1] = True
    table[k, -1] = 7.9
    table[-2, 0] = k
    flags[k] = 5
    rows[k].price = 2
    rows.count[-1] = 9
    rows[0] = rows[k]
    return 0


READ: Any = read
WRITE: Any = write


def _arrays() -> tuple[Any, ...]:
    rows = np.zeros(4, [("price", "f8"), ("count", "i8")]).view(np.recarray)
    rows.price, rows.count = [0.5, 1.5, 2.5, 3.5], [4, 3, 2, 1]
    cube = np.arange(60.0).reshape(3, 4, 5) / 7
    return np.arange(6.0) / 3, np.arange(12.0).reshape(4, 3), cube, rows


@pytest.mark.parametrize("k", [1, -1, np.uint8(2), np.int8(-2)])
def test_elements_are_read_as_numpy_reads_them(k: Any) -> None:
    given = _arrays()
    compiled = ours(read)
    for j in (0, 2, -1):
        assert compiled(*given, k, j) == READ(*given, k, j)


def test_arrays_that_lie_otherwise_are_read_as_well() -> None:
    row, table, cube, rows = _arrays()
    given = np.arange(12.0)[::2], np.asfortranarray(table), cube[:, ::2], rows
    assert ours(read)(*given, 1, 2) == READ(*given, 1, 2)
    assert ours(read)(row[::-1], table, cube, rows[::2], 1, -1) == READ(
        row[::-1], table, cube, rows[::2], 1, -1
    )


@pytest.mark.parametrize("k", [1, -1])
def test_elements_are_written_as_numpy_writes_them(k: int) -> None:
    compiled = ours(write)
    for table in (np.zeros((4, 3)), np.zeros((4, 3), np.int64), np.zeros((4, 3), order="F")):
        row, _, _, rows = _arrays()
        both = [[row.copy(), table.copy("K"), np.zeros(4, bool), rows.copy()] for _ in range(2)]
        compiled(*both[0], k)
        WRITE(*both[1], k)
        for mine, numpys in zip(*both, strict=True):
            np.testing.assert_array_equal(mine, numpys)


def refuses(x: int) -> int:
    if x < 0:
        raise ValueError("below 0")
    return x


def nothing(row: Any, x: int) -> None:
    row[0] += refuses_inside(x)


def outer(row: Any, x: int) -> int:
    nothing_inside(row, x)
    return refuses_inside(x + 1) * 2


refuses.__module__ = nothing.__module__ = "c2c.test_elements"
refuses_inside, nothing_inside = jitable(refuses), jitable(nothing)


def test_errors_go_through_calls_that_return_something_or_nothing() -> None:
    compiled, row = ours(outer), np.zeros(1)
    assert compiled(row, 3) == 8
    assert row[0] == 3
    for x in (-1, -2):
        with pytest.raises(ValueError, match="below 0"):
            compiled(row, x)
    assert row[0] == 3
