"""Transfers of KV caches between devices: each device sends them one after another."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from c2c.policies import jitable

__all__ = ["Wires", "drop_sent", "new_wires", "put_on", "take_off"]

WIRE_DTYPE = np.dtype(
    [
        ("first", "i8"),  # the row of what comes next, or -1
        ("last", "i8"),
        ("free_s", "f8"),  # when it will have carried all
    ],
    align=True,
)
SENT_DTYPE = np.dtype(
    [
        ("slot", "i8"),  # of the request
        ("target", "i8"),  # device
        ("next", "i8"),
        ("due_s", "f8"),
        ("bytes", "f8"),
    ],
    align=True,
)


class Wires(NamedTuple):
    """Wire of each device that sends caches directly, and a table of pending transfers."""

    wire: Any  # WIRE_DTYPE [devices]
    sent: Any  # SENT_DTYPE; as many rows as all batches have places
    unused: Any  # i8[1] the first unused row


def new_wires(devices: int, rows: int) -> Wires:
    """Return empty wires."""
    wire = np.zeros(devices, WIRE_DTYPE).view(np.recarray)
    wire.first = wire.last = -1
    sent = np.zeros(rows, SENT_DTYPE).view(np.recarray)
    sent.next = np.arange(1, rows + 1)
    return Wires(wire=wire, sent=sent, unused=np.zeros(1, np.int64))


@jitable
def put_on(
    wires: Wires, d: int, slot: int, target: int, size: float, seconds: float, now_s: float
) -> float:
    """Queue the cache of a request on device `d`'s wire; return the time of its next arrival."""
    wire, k = wires.wire[d], wires.unused[0]
    row = wires.sent[k]
    wires.unused[0] = row.next
    wire.free_s = max(wire.free_s, now_s) + seconds
    row.slot, row.target, row.next, row.due_s, row.bytes = slot, target, -1, wire.free_s, size
    if wire.first < 0:
        wire.first = k
    else:
        wires.sent[wire.last].next = k
    wire.last = k
    return float(wires.sent[wire.first].due_s)


@jitable
def take_off(wires: Wires, d: int) -> tuple[int, int, float, float]:
    """Remove device `d`'s arrived transfer: request, target, bytes, time of the next arrival."""
    wire = wires.wire[d]
    k = wire.first
    row = wires.sent[k]
    wire.first = row.next
    row.next = wires.unused[0]
    wires.unused[0] = k
    next_s = np.inf if wire.first < 0 else wires.sent[wire.first].due_s
    return int(row.slot), int(row.target), float(row.bytes), float(next_s)


def drop_sent(wires: Wires, d: int, goes: Callable[[int, int], bool]) -> float:
    """Drop transfers of some requests from the wire of device `d`; return as `put_on`.

    Later transfers do not arrive earlier.

    Args:
      goes: predicate of the device and a request's slot.
    """
    kept, k = [], int(wires.wire[d].first)
    while k >= 0:
        following = int(wires.sent[k].next)
        if goes(d, int(wires.sent[k].slot)):
            wires.sent[k].next = wires.unused[0]
            wires.unused[0] = k
        else:
            kept.append(k)
        k = following
    for k, following in pairwise([*kept, -1]):
        wires.sent[k].next = following
    wires.wire[d].first, wires.wire[d].last = (kept[0], kept[-1]) if kept else (-1, -1)
    return float(wires.sent[kept[0]].due_s) if kept else np.inf
