"""Own arrays of policies, kept between decisions."""

from __future__ import annotations

from typing import Any

import numpy as np

from c2c.errors import PolicyError
from c2c.policies import Both, Nothing, Own, System
from c2c.serving.tables.state import Fleet

__all__ = ["copied", "own_memory", "remember"]


def own_memory(system: System, fleet: Fleet) -> Own:
    """Return the initial arrays of the policies' `memory(fleet)`."""
    memories = {}
    for setting, policy in system._asdict().items():
        if setting in Own._fields:
            memories[setting] = _memory_of(policy, fleet)
        elif hasattr(policy, "memory"):
            fields = ", ".join(Own._fields)
            raise PolicyError(type(policy).__name__, f"only policies of {fields} have memory")
    return Own(**memories)


def _memory_of(policy: Any, fleet: Fleet) -> Any:
    if isinstance(policy, Both):
        return Both(*(_memory_of(one, fleet) for one in policy))
    if not hasattr(policy, "memory"):
        return Nothing()
    name = type(policy).__name__
    try:
        memory = policy.memory(fleet)
    except Exception as error:
        raise PolicyError(name, f"memory: {type(error).__name__}: {error}") from error
    if not hasattr(memory, "_fields") or not all(isinstance(a, np.ndarray) for a in memory):
        raise PolicyError(name, f"memory returned {memory!r}, not a NamedTuple of arrays")
    return memory


def copied(own: Any) -> Any:
    """Return a copy of nested arrays for another run."""
    return own.copy() if isinstance(own, np.ndarray) else type(own)(*map(copied, own))


def remember(own: Any, before: Any) -> None:
    """Copy nested arrays into larger ones."""
    if isinstance(own, np.ndarray):
        own[tuple(map(slice, before.shape))] = before
    else:
        for memory, source in zip(own, before, strict=True):
            remember(memory, source)
