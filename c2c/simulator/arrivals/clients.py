"""Closed loop of clients."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from c2c.policies import inlined, jitable
from c2c.workloads import ClosedLoop

__all__ = ["Clients", "give_back", "new_clients", "next_free_s", "take_client"]


class Clients(NamedTuple):
    """Clients that think before their next request, by send time."""

    free_s: Any  # f8[clients]
    ring: Any  # i8[2]: where the first one stands, how many wait
    think_s: float


def new_clients(loop: ClosedLoop | None) -> Clients:
    """Return the clients before their first requests."""
    if loop is None:
        return Clients(np.zeros(0), np.zeros(2, np.int64), 0.0)
    count = loop.concurrency
    begin_s = loop.ramp_s * np.arange(count) / count
    return Clients(begin_s, np.array([0, count], np.int64), loop.think_s)


@inlined
def next_free_s(clients: Clients) -> float:
    """Return when a client sends next; inf: all wait for answers."""
    if clients.ring[1] == 0:
        return np.inf
    return float(clients.free_s[clients.ring[0]])


@inlined
def take_client(clients: Clients) -> None:
    """Remove the client that sends next."""
    clients.ring[0] = (clients.ring[0] + 1) % len(clients.free_s)
    clients.ring[1] -= 1


@jitable
def give_back(clients: Clients, ended: int, now_s: float) -> None:
    """Return clients of ended requests to thinking."""
    free_s, ring, size = clients.free_s, clients.ring, len(clients.free_s)
    if size == 0:
        return
    at_s = now_s + clients.think_s
    for _ in range(ended):
        place = ring[1]
        while place > 0 and free_s[(ring[0] + place - 1) % size] > at_s:
            free_s[(ring[0] + place) % size] = free_s[(ring[0] + place - 1) % size]
            place -= 1
        free_s[(ring[0] + place) % size] = at_s
        ring[1] += 1
