"""Charts of latencies as SVG text."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.metrics import Axis, Line, latency_charts
from tests.metrics.test_summary import table

seconds = st.floats(1e-3, 1e3)


@given(st.lists(seconds, min_size=2, max_size=20, unique=True), st.booleans())
def test_an_axis_keeps_order_and_reaches_its_ends(values: list[float], is_log: bool) -> None:
    axis = Axis("s", min(values), max(values), is_log)
    shares = axis.share(np.sort(values))
    assert shares[[0, -1]] == pytest.approx([0.0, 1.0])
    assert (np.diff(shares) >= 0).all()
    assert all(axis.low <= value <= axis.high * (1 + 1e-9) for value in axis.marks())


@given(st.floats(1e-3, 1e3), st.floats(2.0, 1e4), st.booleans())
def test_an_axis_has_a_few_ticks(low: float, ratio: float, is_log: bool) -> None:
    marks = Axis("s", low, low * ratio, is_log).marks()
    assert len(marks) <= 14
    assert len(marks) >= 2 or is_log
    assert len(set(marks.values())) == len(marks)


@given(st.integers(1, 400), st.data(), st.integers(0, 99))
def test_a_curve_ends_at_the_share_of_requests_that_have_a_latency(
    count: int, data: st.DataObject, seed: int
) -> None:
    failed = data.draw(st.sets(st.integers(0, count - 1), max_size=count))
    records = table(count, failed=tuple(failed), seed=seed)
    ttft, tpot = re.findall(r"<svg.*?</svg>", latency_charts([Line("a & b", records, "#123456")]))
    assert ET.fromstring(tpot).attrib["aria-label"] == "TPOT"
    assert "a & b" in "".join(ET.fromstring(ttft).itertext()) or len(failed) == count
    curves = re.findall(r'<path d="M\S+ \S+?(H[^"]*)" fill="none" stroke="#123456"', ttft)
    assert len(curves) == (len(failed) < count)
    for curve in curves:
        across = [float(x) for x in re.findall(r"H([\d.]+)", curve)]
        up = [float(y) for y in re.findall(r"V([\d.]+)", curve)]
        assert across == sorted(across)
        assert up == sorted(up, reverse=True)
        share = (166 - up[-1]) / (166 - 26)  # pixels of the axis
        assert share == pytest.approx(1 - len(failed) / count, abs=1e-3)
