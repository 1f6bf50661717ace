"""Current state of the engine as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from c2c.engine.ledger import Ledger
from c2c.engine.loop_step import Stepping
from c2c.engine.models import Models
from c2c.engine.places import RELAID, Place
from c2c.engine.record import Tape

__all__ = ["requests_now", "weights_now", "work_done", "workers_now"]


def requests_now(ledger: Ledger) -> dict[str, Any]:
    """Return open and waiting requests by model, ended by outcome."""
    entries = [entry for entry in map(ledger.get, ledger) if entry is not None]
    return {
        "open": Counter(entry.ask.model for entry in entries),
        "waiting": Counter(entry.ask.model for entry in entries if entry.begun_s is None),
        "queued": {name: (w.buckets(), w.total_s) for name, w in ledger.waits.items()},
        "outcomes": dict(ledger.outcomes),
    }


def work_done(tape: Tape, places: Sequence[Place]) -> dict[str, Any]:
    """Return the work computed since the start."""
    return {
        "steps": sum(totals.steps for totals in tape.totals.values()),
        "models": {name: asdict(totals) for name, totals in tape.totals.items()},
        "compiled_after_start": sum(place.compiled for place in places),
        "outside_s": median(row.outside_s for row in tape.recent) if tape.recent else None,
    }


def weights_now(budget_bytes: int | None, models: Models | None) -> dict[str, Any]:
    """Return models with weights in memory, loading, or pinned."""
    store = None if models is None else models.store
    return {
        "budget_bytes": budget_bytes,
        "here": sorted(store.here if store else models.rows if models else ()),
        "coming": list(store.coming) if store else [],
        "pinned": sorted(models.pinned) if models else [],
    }


def workers_now(places: Sequence[Place], stepping: Stepping | None) -> list[dict[str, Any]]:
    """Return each worker's state, once the loop has begun."""
    if stepping is None:
        return []
    return [_worker_now(place, stepping.state.device[place.device]) for place in places]


def _worker_now(place: Place, device: Any) -> dict[str, Any]:
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
        "kv_bytes": float(device.kv_bytes),
        "kv_capacity_bytes": float(device.capacity_bytes - device.weight_bytes),
        "model": None if doing is None else place.instances.get(int(doing.action.instance)),
        "layout": {
            "variant": place.variant,
            "is_changing": place.relayout is not None,
            "longest_piece_s": place.longest_piece_s,
            **{name: place.relaid[name] for name in (*RELAID, "tasks")},
        },
    }
