"""An answer to a claim of Tessera's, in the claim's own unit."""

from __future__ import annotations

from typing import Any

from experiments.claims import Result, Sample, claim

__all__ = ["answer"]


def answer(name: str, ours: Any, note: str = "", sample: Sample = "out-of-sample") -> Result:
    """Return a result; `name` is the claim's id without the system."""
    claim_id = f"tessera.{name}"
    return Result(claim_id=claim_id, ours=ours, unit=claim(claim_id).unit, sample=sample, note=note)
