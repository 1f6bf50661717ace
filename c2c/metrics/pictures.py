"""Latencies as HTML and SVG, for notebooks and pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from c2c.metrics.columns import values_of
from c2c.metrics.latency import tpot_s, ttft_s

__all__ = ["Axis", "Line", "chart", "latency_charts", "latency_table"]

Floats = npt.NDArray[np.float64]

_WIDTH, _LEFT, _RIGHT, _TOP, _BELOW = 520, 54, 508, 26, 34  # pixels
_GREY, _GRID, _TARGET = "#767676", "#E3E3E3", "#D55E00"
_POINTS = 200  # of a curve
_TARGETS_SHOWN = 3
_MODELS_SHOWN = 8


class Axis(NamedTuple):
    """An axis with label and unit; `ticks`: texts by value."""

    label: str
    low: float
    high: float
    is_log: bool = False
    ticks: Mapping[float, str] | None = None

    def share(self, values: Any) -> Floats:
        """Return positions: 0 at `low`, 1 at `high`."""
        positions = np.asarray([self.low, self.high, *np.ravel(values)], dtype=np.float64)
        positions = np.log(np.maximum(positions, self.low)) if self.is_log else positions
        return np.asarray(
            ((positions - positions[0]) / (positions[1] - positions[0]))[2:].reshape(
                np.shape(values)
            )
        )

    def x(self, values: Any) -> Floats:
        """Return pixels from the left."""
        return _LEFT + (_RIGHT - _LEFT) * self.share(values)

    def y(self, values: Any, height: int) -> Floats:
        """Return pixels from the top."""
        return (height - _BELOW) - (height - _BELOW - _TOP) * self.share(values)

    def marks(self) -> Mapping[float, str]:
        """Return the ticks and their texts."""
        if self.ticks is not None:
            return self.ticks
        if self.is_log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1,) if last - first > 3 else (1, 2, 5)
            ticks = [s * 10.0**k for k in range(first, last + 1) for s in steps]
        else:
            size = 10.0 ** math.floor(math.log10((self.high - self.low) / 4))
            step = next(s * size for s in (1, 2, 5, 10) if (self.high - self.low) / (s * size) < 7)
            ticks = [step * k for k in range(math.ceil(self.low / step), int(self.high / step) + 1)]
        return {v: f"{v:.6g}" for v in ticks if self.low <= v <= self.high * (1 + 1e-9)}


class Line(NamedTuple):
    """A run in a chart: name, records, colour, dashes."""

    name: str
    requests: pa.Table
    colour: str = "#0072B2"
    dashes: str = ""


def chart(title: str, x: Axis, y: Axis, marks: Iterable[str], height: int = 200) -> str:
    """Return an SVG picture with `marks` over its grid."""
    bottom = height - _BELOW
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}" '
        'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="10.5" '
        f'fill="#222" style="background:#fff;width:100%;max-width:{2 * _WIDTH}px">'
        f'<text x="2" y="13" font-size="12" font-weight="bold">{escape(title)}</text>'
    ]
    for value, text in y.marks().items():
        place = float(y.y(value, height))
        parts.append(f'<path d="M{_LEFT} {place:.1f}H{_RIGHT}" stroke="{_GRID}"/>'
                     f'<text x="{_LEFT - 5}" y="{place + 3.5:.1f}" text-anchor="end">{escape(text)}'
                     "</text>")  # fmt: skip
    for value, text in x.marks().items():
        place = float(x.x(value))
        parts.append(f'<path d="M{place:.1f} {bottom}v4" stroke="{_GREY}"/>'
                     f'<text x="{place:.1f}" y="{bottom + 15}" text-anchor="middle">{escape(text)}'
                     "</text>")  # fmt: skip
    parts += marks
    parts.append(
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{_RIGHT}" fill="none" stroke="{_GREY}"/>'
        f'<text x="{_RIGHT}" y="{height - 5}" text-anchor="end">{escape(x.label)}</text>'
        f'<text x="{_RIGHT}" y="13" text-anchor="end" fill="{_GREY}">{escape(y.label)}</text></svg>'
    )
    return "".join(parts)


def latency_charts(lines: Sequence[Line]) -> str:
    """Return TTFT (s) and TPOT (ms) as two SVGs; failures end a curve below 100 %."""
    ttft, tpot = [], []
    for one in lines:
        arrival, first, last = (
            values_of(one.requests, name) for name in ("arrival_s", "first_token_s", "finished_s")
        )
        tokens = values_of(one.requests, "output_tokens")
        ttft.append(ttft_s(arrival, first))
        tpot.append(1e3 * tpot_s(first, last, tokens)[tokens > 1])
    return "".join(
        _distribution(title, label, values, lines, targets)
        for title, label, values, targets in (
            ("TTFT", "TTFT (s)", ttft, _targets(lines, "ttft_slo_s")),
            ("TPOT", "TPOT (ms)", tpot, 1e3 * _targets(lines, "tpot_slo_s")),
        )
    )


def _targets(lines: Sequence[Line], column: str) -> Floats:
    targets = np.unique(np.concatenate([values_of(one.requests, column) for one in lines]))
    return np.asarray(targets[np.isfinite(targets)][:_TARGETS_SHOWN], dtype=np.float64)


def _distribution(
    title: str, label: str, values: Sequence[Floats], lines: Sequence[Line], targets: Floats
) -> str:
    series = [np.sort(v[np.isfinite(v)]) for v in values]
    every = np.concatenate([*series, targets])
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.1, 1.0)
    x = Axis(label, max(low / 1.1, 1e-4), max(high * 1.1, 2e-4), is_log=True)
    y = Axis(
        "requests (%)", 0.0, 100.0, ticks={v: f"{v:g}" for v in (0.0, 25.0, 50.0, 75.0, 100.0)}
    )
    height = 200
    marks = [
        f'<path d="M{place:.1f} {_TOP}V{height - _BELOW}" stroke="{_TARGET}" '
        'stroke-dasharray="2 3">'
        f"<title>target: {target:g}</title></path>"
        f'<text x="{place - 3:.1f}" y="{height - _BELOW - 5}" text-anchor="end" fill="{_TARGET}">'
        "target</text>"
        for target, place in zip(targets, x.x(targets), strict=True)
    ]
    keys: list[str] = []
    for one, all_of, ordered in zip(lines, values, series, strict=True):
        if not len(ordered):
            continue
        index = np.unique(np.linspace(0, len(ordered) - 1, _POINTS).astype(int))
        across, up = x.x(ordered[index]), y.y(100.0 * (index + 1) / len(all_of), height)
        steps = "".join(f"H{a:.1f}V{b:.1f}" for a, b in zip(across, up, strict=True))
        stroke = f'fill="none" stroke="{one.colour}" stroke-width="2" '
        stroke += f'stroke-dasharray="{one.dashes}"/>'
        marks.append(f'<path d="M{across[0]:.1f} {height - _BELOW}{steps}" {stroke}')
        key = _TOP + 12 + 14 * len(keys)
        keys.append(
            f'<path d="M{_LEFT + 6} {key - 4}h16" {stroke}<text x="{_LEFT + 27}" y="{key}" '
            f'paint-order="stroke" stroke="#fff" stroke-width="3">{escape(one.name)}</text>'
        )
    return chart(title, x, y, [*marks, *keys], height)


def latency_table(summary: Mapping[str, Any]) -> str:
    """Return requests, latencies and attainment as HTML."""
    models = sorted(summary["models"].items(), key=lambda item: -item[1]["requests"])
    heads = (
        "model", "requests", "failed", "TTFT p50 (s)", "TTFT p99 (s)", "TPOT p50 (ms)",
        "TPOT p99 (ms)", "within both targets (%)",
    )  # fmt: skip
    rows = [
        f"<tr><td>{escape(name)}</td>"
        + "".join(f'<td style="text-align:right">{cell}</td>' for cell in _cells(block))
        + f"<td>{_bar(block['attainment']['both'])}</td></tr>"
        for name, block in [("all", summary), *models[:_MODELS_SHOWN]]
    ]
    if len(models) > _MODELS_SHOWN:
        more = f"and {len(models) - _MODELS_SHOWN:,} more models"
        rows.append(f'<tr><td colspan="{len(heads)}">{more}</td></tr>')
    head = "".join(f"<th>{text}</th>" for text in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cells(block: Mapping[str, Any]) -> list[str]:
    times = [
        (block[name][p], unit)
        for name, unit in (("ttft_s", 1.0), ("tpot_s", 1e3)) for p in ("p50", "p99")
    ]  # fmt: skip
    texts = ("–" if t is None or math.isnan(t) else f"{unit * t:.3g}" for t, unit in times)
    return [f"{block['requests']:,}", f"{block['failed']:,}", *texts]


def _bar(share: float) -> str:
    percent = 100.0 * share
    return (
        '<span style="display:inline-block;width:5em;background:#E3E3E3"><span style="display:'
        f'block;height:.7em;width:{percent:.1f}%;background:#009E73"></span></span> {percent:.1f}'
    )
