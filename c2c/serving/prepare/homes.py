"""Homes of models (chips with weights) and roles of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from c2c.errors import SettingError
from c2c.serving.prepare.adapters import base_rows
from c2c.serving.prepare.settings import ServingSetup
from c2c.serving.prepare.speculation import stored_bytes
from c2c.serving.tables.roles import DECODES, EVERYTHING, PROMPTS

__all__ = ["Homes", "homes", "host_fits", "roles"]


def roles(setup: ServingSetup, slices: Sequence[int]) -> np.ndarray:
    """Return each device's role, chip by chip of so many `slices`."""
    share = setup.system.disaggregation.prompt_share
    groups = [len(slices)] if max(slices) == 1 else slices
    return np.concatenate([_roles_of(share, among) for among in groups])


def _roles_of(share: float, among: int) -> np.ndarray:
    if share == 0.0 or among == 1:
        return np.full(among, EVERYTHING)
    first = min(max(round(share * among), 1), among - 1)
    return np.where(np.arange(among) < first, PROMPTS, DECODES)


class Homes(NamedTuple):
    """Chips that may hold each model, and do at the start."""

    chips: list[list[int]]  # of each model, ascending
    held: list[list[bool]]


def host_fits(setup: ServingSetup) -> np.ndarray:
    """Return whether a part's host memory holds a model; b1[models, parts]."""
    first = np.cumsum([0, *(part.count for part in setup.parts[:-1])])
    memory = setup.weight_memory_bytes[first]
    sizes = stored_bytes(setup)
    fits: np.ndarray = sizes[:, None] <= memory
    for deployment, size, some in zip(setup.deployments, sizes, fits.any(axis=1), strict=True):
        if not some:
            names = ", ".join(dict.fromkeys(part.platform.name for part in setup.parts))
            raise SettingError(
                f"catalog.{deployment.name}",
                f"{size / 1e9:.1f} GB of weights",
                f"at most {memory.max() / 1e9:.1f} GB, the host memory of {names}",
            )
    return fits


def homes(
    setup: ServingSetup, role_of_chip: Sequence[int] | np.ndarray, serves: np.ndarray
) -> Homes:
    """Return each model's home chips, in catalog order, while memory is left."""
    sizes = stored_bytes(setup).tolist()
    base = base_rows(setup.deployments).tolist()
    models = [m for m in range(len(sizes)) if base[m] == m]
    here = np.repeat(serves, [part.count for part in setup.parts], axis=1)
    memory = setup.weight_memory_bytes
    rest_bytes = memory.copy()
    places: list[list[int]] = [[] for _ in sizes]
    start_of: list[dict[int, bool]] = [{} for _ in sizes]
    has_role = [np.array(role_of_chip) == role for role in sorted(set(role_of_chip))]
    for m in models:
        size = sizes[m]
        for of_role in has_role:
            may = of_role & here[m]
            if not may.any():
                share = setup.system.disaggregation.prompt_share
                raise SettingError(
                    "system.disaggregation.prompt_share", share,
                    f"a share with chips for prompts and for decodes that can serve "
                    f"{setup.deployments[m].name}",
                )  # fmt: skip
            if (may & (rest_bytes >= size)).any():
                may &= rest_bytes >= size
            c = int(np.where(may, rest_bytes / memory, -np.inf).argmax())
            places[m].append(c)
            start_of[m][c] = bool(rest_bytes[c] >= size)
            rest_bytes[c] -= size
    # A model that no further chip has room for is done: rooms only shrink.
    growing = [] if (rest_bytes < 0.0).any() else models
    has = np.zeros((len(sizes), setup.chips), bool)
    cell = np.arange(setup.chips) * setup.cells // setup.chips
    for m in models:
        homes_of_m = places[m]
        has[m] = ~here[m] | (cell != cell[homes_of_m[0]])  # never in another cell
        has[m, homes_of_m] = True
    while growing:
        still = []
        for m in growing:
            c = int(np.where(has[m], -1.0, rest_bytes).argmax())
            if not has[m, c] and rest_bytes[c] >= sizes[m]:
                places[m].append(c)
                start_of[m][c] = True
                has[m, c] = True
                rest_bytes[c] -= sizes[m]
                still.append(m)
        growing = still
    start = setup.weights_start == "host"
    chips = [sorted(places[m]) for m in base]
    return Homes(
        chips, [[start and start_of[base[m]][c] for c in row] for m, row in enumerate(chips)]
    )
