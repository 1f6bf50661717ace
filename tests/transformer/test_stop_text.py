"""Stop strings: no part of one gets out, however the text is cut into pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.transformer.text.stop_text import StopText

TEXTS = st.text("ab#", max_size=24)
STOPS = st.lists(st.text("ab#", min_size=1, max_size=4), max_size=3)


def expected(text: str, stops: list[str], first: int = 0) -> tuple[str, str | None]:
    """The definition: the first end of any stop from `first`, the longest that ends there."""
    for end in range(first, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(TEXTS, STOPS, st.lists(st.integers(0, 24), max_size=6), st.integers(0, 4))
def test_pieces_make_no_difference(
    text: str, stops: list[str], cuts: list[int], least: int
) -> None:
    marks = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    barred = marks[min(least, len(marks) - 1)] + 1 if least else 0  # no stop ends before
    wanted, found = expected(text, stops, barred)
    stream, out = StopText(stops, least=least), ""
    for first, past in itertools.pairwise(marks):
        out += stream.push(text[first:past])
        assert wanted.startswith(out)  # what is out is never taken back
        held = len(expected(text[:past], stops, barred)[0]) - len(out)
        assert held < max((len(stop) for stop in stops), default=1)
    assert out + stream.finish() == wanted
    assert stream.found == found
    kept = StopText(stops, is_kept=True, least=least)
    pieces = [kept.push(text[first:past]) for first, past in itertools.pairwise(marks)]
    assert "".join(pieces) + kept.finish() == wanted + (found or "")


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(SettingError, match="not empty"):
        StopText(["a", ""])
