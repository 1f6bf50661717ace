"""Copies of carried values, such as keys and values, on every device that has read them.

A carried value passes from one step to the next as a chain of versions: each update writes a part
of the one before. A device with an older version gets the missing updates and computes the newer
version itself. A device without a copy, or whose missing updates are larger than the whole, gets
the whole. A change of the placement therefore sends only the bytes written since the last copy.

Source: Tessera, section III-C. Ours: copies are updated when they are read, not in the background.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

from c2c.errors import SettingError
from c2c.systems.workers.pieces import Pieces, Update

__all__ = ["Replicas", "chains_of"]

Place = Callable[[Any, int], Any]  # an array, a device's number -> the array there


def chains_of(pieces: Pieces, carried: Mapping[int, int]) -> dict[int, tuple[tuple[int, ...], ...]]:
    """Return the versions of each carried argument: the argument, then after each update.

    Values with only a compiler barrier between them are one version.

    Args:
      pieces: pieces of a step.
      carried: number of an argument -> number of the result that becomes it in the next step.

    Raises:
      SettingError: a result is not its argument with updates.
    """
    found = {}
    for argument, result in carried.items():
        versions, value = [[result]], result
        while value in pieces.same or value in pieces.updates:
            if value in pieces.same:
                value = pieces.same[value]
                versions[-1].append(value)
            else:
                value = pieces.updates[value].operand
                versions.append([value])
        if value != argument or argument not in pieces.given:
            raise SettingError(
                "carried", (argument, result), "an argument, and the result of updates to it"
            )
        found[argument] = tuple(tuple(version) for version in reversed(versions))
    return found


class _Written(NamedTuple):
    """An update that has run: its bytes, its operands and their device."""

    nbytes: int
    update: Update
    parts: tuple[Any, ...]
    device: int


@dataclass(slots=True)
class _Chain:
    """A carried argument."""

    values: tuple[tuple[int, ...], ...]  # by version
    nbytes: int
    begun: int = 0  # version of its first value in the step under way
    latest: Any = None  # result of the last step; None: no step has run
    # by device and version
    copies: dict[int, dict[int, Any]] = field(default_factory=dict)
    log: dict[int, _Written] = field(default_factory=dict)  # by the version that it makes


class Replicas:
    """Copies of one request's carried arguments over the devices, from step to step."""

    def __init__(self, pieces: Pieces, carried: Mapping[int, int]) -> None:
        """Initialise without copies; `carried` as in `chains_of`."""
        self._pieces = pieces
        self._chains = [
            _Chain(values, pieces.nbytes[argument])
            for argument, values in chains_of(pieces, carried).items()
        ]
        self._at = {
            value: (chain, version)
            for chain in self._chains
            for version, values in enumerate(chain.values)
            for value in values
        }
        self._lock = threading.Lock()

    def holds(self, value: int) -> bool:
        """Return whether a value is a version of a carried argument."""
        return value in self._at

    def begin(self, given: Mapping[int, Any]) -> None:
        """Begin a step with these arguments.

        Raises:
          SettingError: a carried argument is not the result of the last step.
        """
        for chain in self._chains:
            array = given[chain.values[0][-1]]
            if chain.latest is not None and array is not chain.latest:
                raise SettingError(
                    "requests", chain.values[0][-1], "the last step's result as a carried argument"
                )

    def end(self, results: Mapping[int, Any]) -> None:
        """End a step: keep each copy's newest version, and the updates that some copy lacks."""
        for chain in self._chains:
            chain.begun += len(chain.values) - 1
            chain.latest = results[chain.values[-1][0]]
            for device, copies in list(chain.copies.items()):
                newest = max(copies)
                if (
                    sum(chain.log[n].nbytes for n in range(newest + 1, chain.begun + 1))
                    < chain.nbytes
                ):
                    chain.copies[device] = {newest: copies[newest]}
                else:
                    del chain.copies[device]  # a whole copy is sent as quickly
            needed = min((max(copies) for copies in chain.copies.values()), default=chain.begun)
            chain.log = {n: each for n, each in chain.log.items() if n > needed}

    def wrote(self, value: int, array: Any, parts: Mapping[int, Any], device: int) -> None:
        """Record a version that a piece has made on a device, and the update that led to it.

        Args:
          value: number of the version; nothing is recorded unless it is an update.
          array: the version itself.
          parts: values on that device by number, the update's operands among them.
          device: number of the device.
        """
        update = self._pieces.updates.get(value)
        if update is None:
            return
        chain, position = self._at[value]
        version = chain.begun + position
        with self._lock:
            chain.copies.setdefault(device, {})[version] = array
            written = tuple(parts[part] for part in update.parts)
            nbytes = sum(int(part.nbytes) for part in written)
            chain.log[version] = _Written(nbytes, update, written, device)

    def bring(
        self, value: int, array: Any, device: int, place: Place
    ) -> tuple[Any, list[tuple[int, int]]]:
        """Return a version on a device, and (source, bytes) of each transfer for it.

        Args:
          value: number of the version.
          array: the version, on any device.
          device: number of the device that needs it.
          place: function that copies an array to a device.
        """
        chain, position = self._at[value]
        version = chain.begun + position
        with self._lock:
            copies = chain.copies.setdefault(device, {})
            if version in copies:
                return copies[version], []
            had = max((n for n in copies if n < version), default=-1)
            lacking = self._lacking(chain, had, version)
            if had < 0 or sum(each.nbytes for each in lacking) >= chain.nbytes:
                source = next((d for d, c in chain.copies.items() if version in c), device)
                copies[version] = place(array, device)
                return copies[version], [(source, chain.nbytes)] if source != device else []
            made = copies[had]
            for each in lacking:
                (made,) = each.update.run(made, *(place(part, device) for part in each.parts))
            copies[version] = import_module("jax").block_until_ready(made)
            return made, [(e.device, e.nbytes) for e in lacking if e.device != device]

    def _lacking(self, chain: _Chain, had: int, version: int) -> list[_Written]:
        """Return the updates from one version to another; empty if there is no copy (`had` < 0)."""
        return [chain.log[n] for n in range(had + 1, version + 1)] if had >= 0 else []
