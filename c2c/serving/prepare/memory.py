"""Own arrays of policies, kept between decisions."""

from __future__ import annotations

from typing import Any

import numpy as np

from c2c.errors import PolicyError
from c2c.policies import Own, System
from c2c.serving.state import Fleet

__all__ = ["copied", "own_memory", "remember"]


def own_memory(system: System, fleet: Fleet) -> Own:
    """Return the initial arrays of the policies' `memory(fleet)`."""
    made = {}
    for setting, policy in system._asdict().items():
        if not hasattr(policy, "memory"):
            continue
        name = type(policy).__name__
        if setting not in Own._fields:
            raise PolicyError(name, f"only policies of {', '.join(Own._fields)} have memory")
        try:
            found = policy.memory(fleet)
        except Exception as error:
            raise PolicyError(name, f"memory: {type(error).__name__}: {error}") from error
        if not hasattr(found, "_fields") or not all(isinstance(a, np.ndarray) for a in found):
            raise PolicyError(name, f"memory returned {found!r}, not a NamedTuple of arrays")
        made[setting] = found
    return Own(**made)


def copied(own: Own) -> Own:
    """Return a copy of the arrays for another run."""
    return Own(*(_copied(memory) for memory in own))


def _copied(memory: Any) -> Any:
    return type(memory)(*(array.copy() for array in memory))


def remember(own: Own, before: Own) -> None:
    """Copy the policies' arrays for fewer models into arrays for more."""
    for memory, known in zip(own, before, strict=True):
        for array, old in zip(memory, known, strict=True):
            array[tuple(map(slice, old.shape))] = old
