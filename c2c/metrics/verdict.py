"""Whether a load was more than the fleet can serve, and what stood in the way.

The rule, for all requests together and for each model:

1. The queue is the requests that arrived and have no first token yet; where that one does not grow,
   those that are not finished. At the last arrival it holds W requests. It has been growing since
   the last time it held at most W / 10.
2. The load is too high if that growth took at least a quarter of the time between first and last
   arrival (a burst that drains is shorter or gone); if half-way W was not nearly reached (a steady
   crowd does not grow); if W is at least twice the square root of the requests that arrived
   meanwhile (what chance alone does to a queue that is just kept up with) and at least 20; and if
   most of those that arrived last missed a target.
3. Offered are the requests a second that arrived while the queue grew; sustainable those that
   finished, its first fifth left out, in which batches fill.
4. What binds is looked for while the queue grew, in this order: slices that stood idle beside it;
   the link; room for KV caches; places in batches; HBM; slices that were taken by other models; and
   if nothing of that is full, the slices' compute. A share counts as full from 90 %.

A run that cannot keep up for a while and then drains is no case of it: nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from c2c.metrics.columns import codes_of, numbers_of

__all__ = ["DETAIL_COLUMNS", "Growth", "Room", "growth_of", "judge"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEFT = 0.1  # of the last queue: from where it is said to grow
HALF_WAY = 0.8  # of the last queue: in the middle of linear growth it is about half
LONGEST_BURST = 0.25  # of the time between first and last arrival
CHANCE = 2.0  # standard deviations of as many arrivals
FEWEST = 20
FILLING = 0.2  # of the growth: batches fill, so fewer finish than arrive
FULL = 0.9

# What is read beside the columns of a summary, only where a load is too high.
DETAIL_COLUMNS = ("model", "started_s", "finished_s", "prompt_tokens", "output_tokens", "slice",
                  "chip", "start_kind", "arrival_s", "link_bytes", "hbm_bytes")  # fmt: skip

_BINDS = {
    "idle_slices": "slices stand idle beside the queue: a busy model gets no more of them",
    "link": "the link",
    "kv": "room for KV caches",
    "batch": "places in batches",
    "hbm": "HBM bandwidth",
    "slices": "slices, which other models hold",
    "compute": "compute of the slices",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the fleet has: by slice, and for KV caches by model and slice.

    Attributes:
      models: names, in the order of the rows of `kv_tokens`.
      chips: how many there are.
      link_gbps: of one chip.
      hbm_gbps: [slices].
      kv_tokens: [models, slices], of that model alone.
      max_batch: requests in an instance's batch.
    """

    models: tuple[str, ...]
    chips: int
    link_gbps: float
    hbm_gbps: Floats
    kv_tokens: Ints
    max_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A queue that grew until the last arrival.

    Attributes:
      since_s, until_s: when.
      arrived: requests meanwhile.
      waiting: the queue at the end.
    """

    since_s: float
    until_s: float
    arrived: int
    waiting: int


def growth_of(
    arrival_s: Floats, left_s: Floats, missed: npt.NDArray[np.bool_], span: tuple[float, float]
) -> Growth | None:
    """Return how a queue grew until the last arrival of the run, or None if the load was served.

    Args:
      arrival_s: of each request, in any order.
      left_s: when it left the queue.
      missed: whether it missed a target.
      span: first and last arrival of the run.
    """
    first_s, last_s = span
    waiting = int(np.count_nonzero(left_s > last_s))
    if waiting < FEWEST or last_s <= first_s:
        return None
    order = np.argsort(arrival_s, kind="stable")
    arrived = arrival_s[order]
    gone = np.searchsorted(np.sort(left_s), arrived, side="right")
    queue = np.arange(1, len(arrived) + 1) - gone  # as each request arrived
    low = np.flatnonzero(queue <= LEFT * waiting)
    start = int(low[-1]) + 1 if len(low) else 0
    count = len(arrived) - start
    if count == 0:
        return None
    since_s = float(arrived[start])
    if last_s - since_s < LONGEST_BURST * (last_s - first_s):
        return None
    if waiting < CHANCE * count**0.5 or np.mean(missed[order][-max(1, count // 4) :]) <= 0.5:
        return None
    middle = queue[start:][
        np.abs(arrived[start:] - (since_s + last_s) / 2) < (last_s - since_s) / 10
    ]
    if len(middle) and np.median(middle) > HALF_WAY * waiting:
        return None
    return Growth(since_s=since_s, until_s=last_s, arrived=count, waiting=waiting)


def judge(
    records: pa.Table, room: Room, details: Callable[[Sequence[str]], pa.Table]
) -> dict[str, Any] | None:
    """Return what to say of a load that was too high, as plain data; None of one that was served.

    Args:
      records: at least `SUMMARY_COLUMNS` of `c2c.metrics`.
      room: what the fleet has.
      details: reads further columns of the same records, in the same order.
    """
    if not records.num_rows:
        return None
    arrival, first, finished = (numbers_of(records, c) for c in _TIMES)
    ended = np.where(np.isfinite(finished), finished, arrival)
    span = (float(arrival.min()), float(arrival.max()))
    if np.count_nonzero(ended > span[1]) < FEWEST:
        return None
    model = _models(records, room)
    late = ~(first - arrival <= numbers_of(records, "ttft_slo_s"))
    gaps = np.maximum(numbers_of(records, "output_tokens") - 1.0, 1.0)
    slow = (finished - first) / gaps > numbers_of(records, "tpot_slo_s")
    begun = np.where(np.isfinite(first), first, ended)
    whole: Growth | None = None
    behind: dict[str, Growth] = {}
    left = begun
    for left, missed in ((begun, late), (ended, late | slow)):
        whole = growth_of(arrival, left, missed, span)
        for m in np.unique(model[left > span[1]]):
            rows = model == m
            found = growth_of(arrival[rows], left[rows], missed[rows], span)
            if found is not None:
                behind[room.models[m]] = found
        if whole is not None or behind:
            break
    if whole is None and not behind:
        return None
    window = whole or max(behind.values(), key=lambda g: g.waiting)
    concerned = np.ones(len(model), bool)
    if behind:
        concerned = np.isin(model, [room.models.index(name) for name in behind])
    shares = _shares(details(DETAIL_COLUMNS), room, window, concerned)
    binds = _binding(shares, len(room.hbm_gbps))
    since, until = window.since_s, window.until_s
    counted_from = since + FILLING * (until - since)
    inside = concerned & (arrival >= since) & (arrival <= until)
    served = concerned & (finished > counted_from) & (finished <= until)
    verdict = {
        "models": sorted(behind) or "all together",
        "since_s": since,
        "until_s": until,
        "offered_rps": float(np.count_nonzero(inside) / (until - since)),
        "sustainable_rps": float(np.count_nonzero(served) / (until - counted_from)),
        "waiting": int(np.count_nonzero(concerned & (left > until))),
        "binds": binds,
        "slices": len(room.hbm_gbps),
        **shares,
    }
    return verdict | {"text": _text(verdict, len(room.models))}


_TIMES = ("arrival_s", "first_token_s", "finished_s")


def _shares(
    table: pa.Table, room: Room, window: Growth, concerned: npt.NDArray[np.bool_]
) -> dict[str, float]:
    """Return what was used of each resource while the queue grew; served requests tell it."""
    since, until = window.since_s, window.until_s
    seconds = until - since
    started, finished = numbers_of(table, "started_s"), numbers_of(table, "finished_s")
    ran = np.clip(np.minimum(finished, until) - np.maximum(started, since), 0.0, None)
    ran = np.where(np.isfinite(ran), ran, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(ran > 0, ran / np.maximum(finished - started, 1e-12), 0.0)
    where = numbers_of(table, "slice").astype(np.int64)
    served = (ran > 0) & (where >= 0)
    slices = len(room.hbm_gbps)
    model = _models(table, room)

    def per_slice(values: Floats) -> Floats:
        return np.bincount(where[served], weights=values[served], minlength=slices)

    link_bytes, hbm_bytes = numbers_of(table, "link_bytes"), numbers_of(table, "hbm_bytes")
    occupied = np.array(
        [_covered(started[on], finished[on], since, until)
         for on in (served & (where == s) for s in range(slices))]
    )  # fmt: skip
    used = occupied > 0
    tokens = numbers_of(table, "prompt_tokens") + numbers_of(table, "output_tokens")
    capacity = np.maximum(1, room.kv_tokens[model, np.maximum(where, 0)])
    held = per_slice(tokens / capacity * ran) / seconds
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
    elsewhere = float(waited[~is_warm].sum() / max(waited.sum(), 1e-12))
    chip = numbers_of(table, "chip").astype(np.int64)
    moved = np.bincount(chip[served], weights=(link_bytes * share)[served], minlength=room.chips)
    return {
        "link": float(moved.max() / (room.link_gbps * 1e9 * seconds)),
        "hbm": float(hbm[used].max()) if used.any() else 0.0,
        "kv": float((held / np.maximum(occupied, 1e-12))[used].max()) if used.any() else 0.0,
        "batch": float((batch / np.maximum(occupied, 1e-12))[used].max()) if used.any() else 0.0,
        "occupied": float(occupied.mean()),
        "idle_slices": float((1.0 - occupied).sum()),
        "waited_for_a_slice": elsewhere,
    }


def _covered(start_s: Floats, end_s: Floats, since: float, until: float) -> float:
    """Return the share of [since, until] in which at least one of the intervals runs."""
    if not len(start_s):
        return 0.0
    order = np.argsort(start_s, kind="stable")
    start = np.clip(start_s[order], since, until)
    end = np.maximum.accumulate(np.clip(end_s[order], since, until))
    before = np.concatenate([[since], end[:-1]])
    return float(np.clip(end - np.maximum(start, before), 0.0, None).sum() / (until - since))


def _binding(shares: dict[str, float], slices: int) -> str:
    if shares["idle_slices"] >= max(1.0, 0.1 * slices) and shares["link"] < FULL:
        return "idle_slices"
    for name in ("link", "kv", "batch", "hbm"):
        if shares[name] >= FULL:
            return name
    return "slices" if shares["waited_for_a_slice"] >= 0.5 else "compute"


def _text(verdict: dict[str, Any], models: int) -> list[str]:
    """Return the verdict in two lines."""
    late = verdict["models"]
    whose = ""
    if isinstance(late, list) and len(late) < models:
        whose = f" of {', '.join(late[:3])}{' and others' if len(late) > 3 else ''}"
    first = (
        f"overload: {verdict['offered_rps']:.3g} requests/s{whose} offered, about "
        f"{verdict['sustainable_rps']:.3g} sustainable; {verdict['waiting']:,} waited at the last "
        f"arrival, the queue grew for {verdict['until_s'] - verdict['since_s']:,.0f} s"
    )
    second = (
        f"what binds: {_BINDS[verdict['binds']]} (meanwhile link {100 * verdict['link']:.0f} %, "
        f"HBM {100 * verdict['hbm']:.0f} %, KV {100 * verdict['kv']:.0f} %, batch "
        f"{100 * verdict['batch']:.0f} %, {verdict['idle_slices']:.1f} of {verdict['slices']} "
        "slices idle)"
    )
    return [first, second]


def _models(table: pa.Table, room: Room) -> Ints:
    codes, names = codes_of(table, "model")
    return np.array([room.models.index(name) for name in names], np.int64)[codes]
