"""Pictures of a run over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Final

import numpy as np
import numpy.typing as npt

from c2c.config import SimulationResult
from c2c.metrics import Axis, chart, codes_of, values_of
from experiments.figures.style import COLOURS, INK

__all__ = ["model_colours", "time_charts"]

Floats = npt.NDArray[np.float64]

BINS: Final = 240
LANES: Final = 16
_LANE, _STARTS = 16, ("switch", "load")  # pixels of a slice; kinds of phases that start a model
_STARTING, _OTHERS = "a model's start", "other models"


def model_colours(result: SimulationResult) -> dict[str, str]:
    """Return colours of the models with most requests."""
    models = result.summary["models"]
    popular = sorted(models, key=lambda name: -models[name]["requests"])
    return dict(zip(popular, COLOURS, strict=False))


def time_charts(result: SimulationResult, colours: Mapping[str, str], colour: str) -> str:
    """Return SVG pictures: link use, and models by slice, with legend."""
    phases, run, prepared = result.phases, result.summary["run"], result.setup.prepared
    end_s = float(run["end_s"])
    if phases.num_rows == result.setup.timeline_rows:  # later phases were not kept
        end_s = float(values_of(phases, "end_s").max())
    edges = np.linspace(0.0, end_s, BINS + 1)
    x = Axis("time (s)", 0.0, end_s)
    shown = min(LANES, int(run["instances"]))
    link_gb = np.zeros(BINS)
    shares: dict[str, Floats] = {}  # (slice, bin) by model
    for instance, name, start_s, end, gbps in _groups(result):
        link_gb += _amounts(edges, start_s, end, gbps)
        if instance < shown:
            label = name if name in colours or name == _STARTING else _OTHERS
            busy = shares.setdefault(label, np.zeros((shown, BINS)))
            busy[instance] += _amounts(edges, start_s, end, np.ones(len(end))) / (end_s / BINS)
    capacity_gbps = float(sum(prepared.link_gbps))
    percent = 100.0 * link_gb / (end_s / BINS) / capacity_gbps
    palette = {**colours, _OTHERS: "#BBBBBB", _STARTING: INK}
    whole = f"{capacity_gbps:,.0f} GB/s" + (f" of {run['chips']} chips" if run["chips"] > 1 else "")
    link = chart(
        f"Link: {100 * run['utilisation']['link_mean']:.0f} % in use on average", x,
        Axis(f"% of {whole}", 0.0, 100.0, ticks={v: f"{v:g}" for v in (0.0, 50.0, 100.0)}),
        _filled(x, edges, percent, colour), 120,
    )  # fmt: skip
    order = [name for name in palette if name in shares]
    more = f" (first {shown} of {run['instances']} slices)" if run["instances"] > shown else ""
    height = 60 + _LANE * shown
    y = Axis("height: share of the time that a model computes", float(shown), 0.0,
             ticks={k + 1.0: f"slice {k}" for k in range(shown)})  # fmt: skip
    lanes = chart(f"Slices{more}", x, y, _lanes(x, y, edges, shares, palette, height), height)
    legend = "".join(
        f'<span><i style="background:{palette[name]}"></i>{escape(name)}</span>' for name in order
    )
    return f'{link}{lanes}<p class="legend">{legend}</p>'


def _groups(result: SimulationResult) -> Iterator[tuple[int, str, Floats, Floats, Floats]]:
    phases = result.phases
    codes, names = codes_of(phases, "model")
    kinds, kind_names = codes_of(phases, "kind")
    starts = np.isin(kinds, [k for k, name in enumerate(kind_names) if name in _STARTS])
    label = np.where(starts, len(names), codes)
    instance = values_of(phases, "instance").astype(np.int64)
    start_s, end_s = values_of(phases, "start_s"), values_of(phases, "end_s")
    gbps = np.nan_to_num(values_of(phases, "link_gbps"))
    key = instance * (len(names) + 1) + label
    order = np.lexsort((start_s, key))
    for rows in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
        if len(rows):
            name = [*names, _STARTING][label[rows[0]]]
            yield int(instance[rows[0]]), name, start_s[rows], end_s[rows], gbps[rows]


def _amounts(edges: Floats, start_s: Floats, end_s: Floats, rate: Floats) -> Floats:
    amounts = (end_s - start_s) * rate
    after = np.cumsum(amounts)
    times = np.maximum.accumulate(np.column_stack([start_s, end_s]).ravel())
    totals = np.column_stack([after - amounts, after]).ravel()
    return np.asarray(np.diff(np.interp(edges, times, totals)))


def _filled(x: Axis, edges: Floats, percent: Floats, colour: str) -> Iterator[str]:
    y = Axis("", 0.0, 100.0)
    across, up = x.x(edges), y.y(np.minimum(percent, 100.0), 120)
    steps = "".join(f"V{b:.1f}H{a:.1f}" for a, b in zip(across[1:], up, strict=True))
    zero = float(y.y(0.0, 120))
    yield f'<path d="M{across[0]:.1f} {zero:.1f}{steps}V{zero:.1f}" fill="{colour}"/>'


def _lanes(
    x: Axis, y: Axis, edges: Floats, shares: Mapping[str, Floats], palette: Mapping[str, str],
    height: int,
) -> Iterator[str]:  # fmt: skip
    across, width = x.x(edges), (x.x(edges[1]) - x.x(edges[0]))
    below = np.zeros_like(next(iter(shares.values()), np.zeros((1, 1))))
    for name in (name for name in palette if name in shares):
        share = np.minimum(shares[name], 1.0 - below)
        rows, bins = np.nonzero(share > 0.01)
        up = y.y(rows + 1 - 0.9 * below[rows, bins], height)
        path = "".join(
            f"M{a:.1f} {b:.1f}h{width:.1f}v{-c:.1f}h{-width:.1f}z"
            for a, b, c in zip(across[bins], up, 0.9 * _LANE * share[rows, bins], strict=True)
        )
        below = below + share
        yield f'<path d="{path}" fill="{palette[name]}"><title>{escape(name)}</title></path>'
