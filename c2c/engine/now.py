"""The engine's present state as plain data, for its page and its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from c2c.engine.ledger import Ledger
from c2c.engine.places import RELAID, Place
from c2c.engine.record import Tape

__all__ = ["requests_now", "work_done", "worker_now"]


def requests_now(ledger: Ledger) -> dict[str, Any]:
    """Return how many requests are open by model, and how many ended by why."""
    waiting: dict[str, int] = {}
    for request in ledger:
        entry = ledger.get(request)
        if entry is not None:
            waiting[entry.ask.model] = waiting.get(entry.ask.model, 0) + 1
    return {"open": waiting, "outcomes": dict(ledger.outcomes)}


def work_done(tape: Tape, places: Sequence[Place]) -> dict[str, Any]:
    """Return what was computed since the start."""
    return {
        "steps": sum(totals.steps for totals in tape.totals.values()),
        "models": {name: asdict(totals) for name, totals in tape.totals.items()},
        "compiled_after_start": sum(place.compiled for place in places),
        "outside_s": median(row.outside_s for row in tape.recent) if tape.recent else None,
    }


def worker_now(place: Place) -> dict[str, Any]:
    """Return what a worker is doing."""
    doing = place.doing
    state = "idle" if doing is None else "busy"
    if place.is_waiting:
        state = "loading"
    if place.link is None:
        state = "given up" if place.is_quarantined else "starting"
    return {
        "device": place.device,
        "pid": None if place.process is None else place.process.pid,
        "state": state,
        "generation": place.generation,
        "restarts": place.restarts,
        "residents": sorted(place.instances.values()),
        "held": len(place.held),
        "model": None if doing is None else place.instances.get(int(doing.action.instance)),
        "layout": {
            "variant": place.variant,
            "is_changing": place.relayout is not None,
            "longest_piece_s": place.longest_piece_s,
            **{name: place.relaid[name] for name in RELAID},
        },
    }
