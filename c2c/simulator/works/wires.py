"""Transfers of KV caches between devices."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from c2c.policies import jitable

__all__ = ["EVERYBODY", "Wires", "drop", "new_wires", "put_on", "take_off"]

EVERYBODY: Final = -2

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
        ("slot", "i8"),  # of its request
        ("id", "i8"),
        ("target", "i8"),  # device
        ("next", "i8"),
        ("due_s", "f8"),
        ("bytes", "f8"),
    ],
    align=True,
)


class Wires(NamedTuple):
    """Wire of each directly sending device, and pending transfers."""

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
    wires: Wires, d: int, slot: int, request_id: int, target: int, size: float, seconds: float,
    now_s: float,
) -> float:  # fmt: skip
    """Queue a request's cache on device `d`'s wire; return the next arrival."""
    wire, k = wires.wire[d], wires.unused[0]
    row = wires.sent[k]
    wires.unused[0] = row.next
    wire.free_s = max(wire.free_s, now_s) + seconds
    row.slot, row.id, row.target, row.next = slot, request_id, target, -1
    row.due_s, row.bytes = wire.free_s, size
    if wire.first < 0:
        wire.first = k
    else:
        wires.sent[wire.last].next = k
    wire.last = k
    return float(wires.sent[wire.first].due_s)


@jitable
def take_off(wires: Wires, d: int) -> tuple[int, int, float, float]:
    """Remove device `d`'s arrived transfer; return it and the next time."""
    wire = wires.wire[d]
    k = wire.first
    row = wires.sent[k]
    wire.first = row.next
    row.next = wires.unused[0]
    wires.unused[0] = k
    next_s = np.inf if wire.first < 0 else wires.sent[wire.first].due_s
    return int(row.slot), int(row.target), float(row.bytes), float(next_s)


@jitable
def drop(wires: Wires, d: int, request_id: int) -> float:
    """Drop a request's transfers from the wire of device `d`; return as `put_on`.

    Args:
      request_id: EVERYBODY: all transfers go.
    """
    wire, before, k = wires.wire[d], -1, wires.wire[d].first
    while k >= 0:
        row, following = wires.sent[k], wires.sent[k].next
        if request_id == EVERYBODY or row.id == request_id:
            if before < 0:
                wire.first = following
            else:
                wires.sent[before].next = following
            row.next = wires.unused[0]
            wires.unused[0] = k
        else:
            before = k
        k = following
    wire.last = before
    return float(wires.sent[wire.first].due_s) if wire.first >= 0 else np.inf
