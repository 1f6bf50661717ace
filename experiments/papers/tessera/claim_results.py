"""Results for claims of Tessera."""

from __future__ import annotations

from typing import Any

from experiments import claims
from experiments.claims import Result, Sample

__all__ = ["answer"]


def answer(name: str, ours: Any, note: str = "", sample: Sample = "out-of-sample") -> Result:
    """Return a result; `name`: the claim's id without system."""
    return claims.answer(f"tessera.{name}", ours, note, sample)
