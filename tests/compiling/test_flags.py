"""Numba's flags hash and compare as Numba's own definition says."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from numba.core.compiler import Flags

import c2c.compiling.linking  # noqa: F401  puts ours in place

SETTINGS = st.dictionaries(
    st.sampled_from(["boundscheck", "nrt", "release_gil", "no_compile", "debuginfo"]), st.booleans()
)


def _flags(settings: dict[str, bool]) -> Any:
    flags: Any = Flags()
    for name, value in settings.items():
        setattr(flags, name, value)
    return flags


@given(SETTINGS, SETTINGS)
def test_flags_are_equal_where_all_their_values_are(
    ours: dict[str, bool], theirs: dict[str, bool]
) -> None:
    a, b = _flags(ours), _flags(theirs)
    assert (a == b) == (a.values() == b.values())
    assert (a != b) == (a.values() != b.values())
    assert hash(a) == hash(tuple(sorted(a.values())))
    assert a != 3
    assert hash(a) == hash(b)  # Numba's is one for all
