"""Files that supplement the claims."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from c2c.errors import DataError
from experiments.claims.load import load_claims

__all__ = ["members_of_orders", "reasons_of_misses"]

ORDERS_PATH = Path(__file__).with_name("orders.yaml")
MISSES_PATH = Path(__file__).with_name("misses.yaml")


@cache
def members_of_orders() -> dict[str, tuple[str, ...]]:
    """Return the claims that orders compare, by the order's id."""
    entries = _read(ORDERS_PATH)
    for name, members in entries.items():
        is_valid = isinstance(members, list) and set(members) <= set(load_claims())
        if not is_valid or len(members) < 2:
            raise DataError(ORDERS_PATH.name, f"{name}: expected at least two ids of claims")
    return {name: tuple(members) for name, members in entries.items()}


@cache
def reasons_of_misses() -> dict[str, str]:
    """Return reasons of misses by claim id."""
    entries = _read(MISSES_PATH)
    for name, why in entries.items():
        if not isinstance(why, str) or not why.strip():
            raise DataError(MISSES_PATH.name, f"{name}: expected the reason, as text")
    return {name: why.strip() for name, why in entries.items()}


def _read(path: Path) -> dict[str, Any]:
    entries = yaml.safe_load(path.read_bytes())
    for name in entries:
        if name not in load_claims():
            raise DataError(path.name, f"{name}: expected the id of a claim")
    return dict(entries)
