"""Tables of the state as Python objects: what NumPy's records are to compiled code.

Reading a field of a NumPy record takes a microsecond, and a step of the loop reads hundreds. A live
engine runs the step interpreted, so it keeps its tables as lists of rows with slots: the same
names, the same numbers, a twentieth of the time. Arrays of plain numbers stay what they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import field, make_dataclass
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np

__all__ = ["Row", "Rows", "as_records", "as_rows", "new_row", "row_type"]


class Row:
    """One row; its subclasses have the fields of a dtype, and take their values in that order."""

    __slots__ = ()
    names: ClassVar[tuple[str, ...]] = ()
    values: ClassVar[Callable[[Any], tuple[Any, ...]]]

    def __iter__(self) -> Iterator[Any]:
        return iter(type(self).values(self))

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def copy(self) -> Self:
        """Return a row of its own with the same values."""
        return type(self)(*type(self).values(self))


@functools.cache
def row_type(dtype: np.dtype[Any]) -> type[Row]:
    """Return the class of a dtype's rows; it takes their values in the dtype's order."""
    # A dataclass's __init__ is straight code, and attrgetter is C: a row is copied each step.
    names = dtype.names or ()
    zeros = zip(names, np.zeros(1, dtype).tolist()[0], strict=True)
    fields = [(name, Any, field(default=zero)) for name, zero in zeros]
    made: Any = make_dataclass("Row", fields, bases=(Row,), slots=True, eq=False)
    made.names = names
    several = len(names) > 1
    made.values = staticmethod(attrgetter(*names) if several else lambda row: (row[names[0]],))
    found: type[Row] = made
    return found


def new_row(dtype: np.dtype[Any], **fields: Any) -> Row:
    """Return a row with the given fields; the others are zero."""
    return row_type(dtype)(**fields)


class Rows(list[Any]):
    """A table, read and written as NumPy's: by row, and whole columns to read."""

    def __init__(self, table: np.ndarray) -> None:
        """Take over the values of a record array."""
        self.dtype = table.dtype
        made = row_type(table.dtype)
        super().__init__(made(*values) for values in table.tolist())

    def __setitem__(self, at: Any, row: Any) -> None:
        # As in an array: values are copied into the row that is there.
        target = self[at]
        is_record = isinstance(row, np.void)
        target.__init__(*(row.tolist() if is_record else type(target).values(row)))

    def __getattr__(self, name: str) -> np.ndarray:
        if name not in (self.__dict__["dtype"].names or ()):
            raise AttributeError(name)
        return np.array([getattr(row, name) for row in self], self.dtype[name])

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        del dtype, copy  # a table has its own, and this is always one
        return np.array([tuple(row) for row in self], self.dtype)

    def __repr__(self) -> str:
        return f"{len(self)} rows of {', '.join(self.dtype.names or ())}"

    def copy(self) -> Rows:
        """Return a table of its own with the same values."""
        made = Rows(np.zeros(0, self.dtype))
        made.extend(row.copy() for row in self)
        return made

    def grown(self, extra: int) -> Rows:
        """Return this table with so many more rows of zeros."""
        self.extend(Rows(np.zeros(extra, self.dtype)))
        return self


def as_rows[T: tuple[Any, ...]](tables: T) -> T:
    """Return a NamedTuple of arrays with its record arrays as rows."""
    changed = {
        name: Rows(field)
        for name, field in zip(tables._fields, tables, strict=True)  # type: ignore[attr-defined]
        if isinstance(field, np.ndarray) and field.dtype.names is not None
    }
    made: T = tables._replace(**changed)  # type: ignore[attr-defined]
    return made


def as_records[T: tuple[Any, ...]](tables: T) -> T:
    """Return a NamedTuple with arrays of its own, record arrays in place of rows."""
    made: T = type(tables)(
        *(
            np.asarray(field).view(np.recarray) if isinstance(field, Rows) else field.copy()
            for field in tables
        )
    )
    return made
