"""Use of a fleet's resources during a time span."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from c2c.metrics.columns import codes_of, numbers_of

__all__ = ["DETAIL_COLUMNS", "Room", "models_of", "shares_of"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Columns read for the requests of a time span, only if a verdict needs an explanation.
DETAIL_COLUMNS = ("model", "started_s", "first_token_s", "finished_s", "prompt_tokens",
                  "output_tokens", "instance", "slice", "chip", "start_kind", "arrival_s",
                  "link_bytes", "hbm_bytes", "ttft_slo_s", "tpot_slo_s", "reason")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Capacities of a fleet.

    Attributes:
      models: in the order of the rows of `kv_tokens`.
      link_gbps: f64[chips].
      hbm_gbps: f64[slices].
      kv_tokens: i64[models, slices], tokens of KV cache with that model alone.
      max_batch: of an instance.
      promise_gbps: f64[models], promised link rates; empty: none.
      budget_gbps: f64[chips], link rates that may be promised.
      served_by: i64[models], an adapter's base.
      handed: bool[slices] that decode requests prefilled elsewhere; records lack the other slices'
        times. None: none.
    """

    models: tuple[str, ...]
    chips: int
    link_gbps: Floats
    hbm_gbps: Floats
    kv_tokens: Ints
    max_batch: int
    promise_gbps: Floats = field(default_factory=lambda: np.empty(0))
    budget_gbps: Floats = field(default_factory=lambda: np.full(1, np.inf))
    served_by: Ints | None = None
    handed: npt.NDArray[np.bool_] | None = None


def shares_of(
    table: pa.Table, room: Room, span: tuple[float, float], concerned: npt.NDArray[np.bool_]
) -> dict[str, float]:
    """Return each resource's used share, from served requests."""
    since, until = span
    seconds = until - since
    started, finished = numbers_of(table, "started_s"), numbers_of(table, "finished_s")
    where = numbers_of(table, "slice").astype(np.int64)
    begun = started
    if room.handed is not None:
        begun = np.where(room.handed[where], numbers_of(table, "first_token_s"), started)
    ran = np.clip(np.minimum(finished, until) - np.maximum(begun, since), 0.0, None)
    ran = np.where(np.isfinite(ran), ran, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(ran > 0, ran / np.maximum(finished - begun, 1e-12), 0.0)
    served = (ran > 0) & (where >= 0)
    slices = len(room.hbm_gbps)
    model = models_of(table, room)
    model = model if room.served_by is None else room.served_by[model]

    def per_slice(values: Floats) -> Floats:
        return np.bincount(where[served], weights=values[served], minlength=slices)

    link_bytes, hbm_bytes = numbers_of(table, "link_bytes"), numbers_of(table, "hbm_bytes")
    occupied = _covered(where[served], begun[served], finished[served], span, slices)
    used, is_told = occupied > 0, np.ones(slices, bool) if room.handed is None else room.handed
    engine = numbers_of(table, "instance").astype(np.int64)[served]
    engines = int(engine.max()) + 1 if len(engine) else 0
    running = _covered(engine, begun[served], finished[served], span, engines)
    tokens = numbers_of(table, "prompt_tokens") + numbers_of(table, "output_tokens")
    capacity = np.maximum(1, room.kv_tokens[model, np.maximum(where, 0)])
    kv_share = per_slice(tokens / capacity * ran) / seconds
    batch = per_slice(ran) / seconds / room.max_batch
    hbm = per_slice(hbm_bytes * share) / (room.hbm_gbps * 1e9 * seconds)
    starts, kinds = codes_of(table, "start_kind")
    is_warm = np.array([kind == "warm" for kind in kinds])[starts]
    waited = np.clip(
        np.minimum(np.where(np.isfinite(started), started, until), until)
        - np.maximum(numbers_of(table, "arrival_s"), since),
        0.0,
        None,
    )
    waited = np.where(concerned, waited, 0.0)
    elsewhere = _total(waited[~is_warm]) / max(_total(waited), 1e-12)
    first = np.minimum(np.nan_to_num(numbers_of(table, "first_token_s"), nan=until), until)
    to_first = np.where(concerned, np.clip(first - numbers_of(table, "arrival_s"), 0.0, None), 0.0)
    chip = numbers_of(table, "chip").astype(np.int64)
    moved = np.bincount(chip[served], weights=(link_bytes * share)[served], minlength=room.chips)
    link = (moved / (room.link_gbps * 1e9 * seconds)).max()
    promised, demand = _promised(
        room, chip[served], engine * len(room.models) + model[served], begun[served],
        finished[served], span, model[concerned],
    )  # fmt: skip
    return {
        # A request's bytes are spread evenly over its time, so a sum may come out above the whole.
        "link": min(1.0, float(link)),
        "hbm": min(1.0, float(hbm[used].max())) if used.any() else 0.0,
        "kv": float((kv_share / np.maximum(occupied, 1e-12))[used].max()) if used.any() else 0.0,
        "batch": float((batch / np.maximum(occupied, 1e-12))[used].max()) if used.any() else 0.0,
        "occupied": float(occupied.sum() / max(is_told.sum(), 1e-12)),
        "idle_slices": max(0.0, float((is_told - occupied).sum())),
        "slices": float(is_told.sum()),
        "engines": float(running.sum() / max(occupied.sum(), 1e-12)),
        "waited_for_a_slice": elsewhere,
        "waited": _total(waited) / max(_total(to_first), 1e-12),
        "promised": promised,
        "asked": demand,
    }


def _total(of_requests: npt.NDArray[np.float64]) -> float:
    return float(np.sort(of_requests).sum())


def _promised(
    room: Room,
    chip: Ints,
    engine: Ints,
    start_s: Floats,
    end_s: Floats,
    span: tuple[float, float],
    waiting: Ints,
) -> tuple[float, float]:
    # `engine` numbers models' engines apart: one instance index serves several models in turn.
    if not len(room.promise_gbps) or not len(engine) or not len(waiting):
        return 0.0, 0.0
    engines, first, rows = np.unique(engine, return_index=True, return_inverse=True)
    running = _covered(rows, start_s, end_s, span, len(engines))
    rates = room.promise_gbps[engines % len(room.models)] * running
    promised = np.bincount(chip[first], weights=rates, minlength=room.chips) / room.budget_gbps
    budget_gbps = np.broadcast_to(room.budget_gbps, len(promised))[promised.argmax()]
    return float(promised.max()), float(room.promise_gbps[waiting].min() / budget_gbps)


def _covered(
    group: Ints, start_s: Floats, end_s: Floats, span: tuple[float, float], groups: int
) -> Floats:
    since, until = span
    length = until - since
    order = np.lexsort((start_s, group))
    bins = group[order]
    # Each group gets a time range of its own, so that one running maximum serves all of them.
    begin = np.clip(start_s[order] - since, 0.0, length) + 2.0 * length * bins
    end = np.maximum.accumulate(np.clip(end_s[order] - since, 0.0, length) + 2.0 * length * bins)
    before = np.concatenate([[0.0], end[:-1]]) if len(end) else end
    new = np.clip(end - np.maximum(begin, before), 0.0, None)
    return np.bincount(bins, weights=new, minlength=groups) / length


def models_of(table: pa.Table, room: Room) -> Ints:
    """Return indices in `room.models`."""
    codes, names = codes_of(table, "model")
    row = {name: m for m, name in enumerate(room.models)}
    return np.array([row[name] for name in names], np.int64)[codes]
