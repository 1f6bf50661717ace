"""Groups of chips that share no model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from c2c.serving import Prepared
from c2c.serving.tables.state import Fleet

__all__ = ["Ranges", "groups_of", "ranges_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Groups of neighbouring chips, in order.

    Attributes:
      of_model: group of each model.
      first_chip: of each group; chips between two belong to the lower one.
    """

    of_model: NDArray[np.int64]
    first_chip: NDArray[np.int64]


def groups_of(prepared: Prepared) -> NDArray[np.int64]:
    """Return each model's group, numbered in catalog order."""
    fleet = prepared.fleet
    component = _components(fleet, prepared.setup.chips)
    of_model = component[fleet.home_chip[fleet.home_first[:-1]]]
    _, first, group = np.unique(of_model, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[group]


def ranges_of(prepared: Prepared) -> Ranges:
    """Return the smallest groups of neighbouring chips."""
    fleet, chips = prepared.fleet, prepared.setup.chips
    component = _components(fleet, chips)
    last = np.zeros(chips, np.int64)
    np.maximum.at(last, component, np.arange(chips))
    # A group starts where all chips before belong to components that have ended.
    ended = np.maximum.accumulate(last[component])
    starts = np.append(True, ended[:-1] < np.arange(1, chips))
    # Chips without models would be groups without work.
    lowest = component[fleet.home_chip[fleet.home_first[:-1]]]
    range_of_chip = np.cumsum(starts) - 1
    used, of_model = np.unique(range_of_chip[lowest], return_inverse=True)
    first_chip = np.flatnonzero(starts)[used]
    first_chip[0] = 0
    return Ranges(of_model=of_model, first_chip=first_chip)


def _components(fleet: Fleet, chips: int) -> NDArray[np.int64]:
    # The lowest chip that each chip is connected to by models.
    lowest = np.arange(chips)
    while True:
        of_model = np.minimum.reduceat(lowest[fleet.home_chip], fleet.home_first[:-1])
        labels = lowest.copy()
        np.minimum.at(labels, fleet.home_chip, of_model[fleet.home_model])
        labels = labels[labels]
        if np.array_equal(labels, lowest):
            return lowest
        lowest = labels
