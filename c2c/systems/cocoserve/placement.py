"""Placements: devices that hold copies of each layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from c2c.errors import SettingError

__all__ = ["Part", "Placement", "even_rows"]


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A module (KV, attention, a projection) apart from its layer."""

    layer: int
    module: str
    device: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Copies of a model's layers on devices.

    Attributes:
      copies: devices of each layer, the original first.
      rows: [layer][copy]; (): even shares.
      parts: modules away from their layer.
    """

    copies: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[int, ...], ...] = ()
    parts: tuple[Part, ...] = ()
    first: int = 0

    def __post_init__(self) -> None:
        if not self.copies:
            raise SettingError("copies", [], "at least one layer")
        for layer, devices in enumerate(self.copies):
            if not devices:
                raise SettingError(f"copies[{layer}]", [], "at least one copy of a layer")
            if len(set(devices)) < len(devices):
                raise SettingError(f"copies[{layer}]", list(devices), "one copy a device")
        if self.rows and [len(r) for r in self.rows] != [len(c) for c in self.copies]:
            raise SettingError("rows", self.rows, "a number of rows for each copy of each layer")

    @classmethod
    def unscaled(cls, layers: int, device: int = 0) -> Placement:
        """Return the placement of all layers on one device."""
        return cls(((device,),) * layers, first=device)

    @classmethod
    def in_runs(cls, layers: int, devices: int) -> Placement:
        """Return the placement with a run of layers a device."""
        runs = even_rows(layers, devices)
        return cls(tuple((d,) for d, count in enumerate(runs) for _ in range(count)))

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.copies)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of copies of each layer, the paper's P."""
        return tuple(map(len, self.copies))

    @property
    def devices(self) -> tuple[int, ...]:
        """The first, and all devices with layers or parts, ascending."""
        holders = {d for devices in self.copies for d in devices}
        return tuple(sorted({self.first, *holders, *(part.device for part in self.parts)}))

    def holds(self, layer: int, device: int) -> bool:
        """Return whether a device holds a copy of a layer."""
        return device in self.copies[layer]

    def shares(self, batch: int) -> tuple[tuple[int, ...], ...]:
        """Return each layer's rows by copy.

        Raises:
          SettingError: `rows` do not sum to the batch.
        """
        result = self.rows or tuple(even_rows(batch, len(devices)) for devices in self.copies)
        for layer, rows in enumerate(result):
            if sum(rows) != batch or min(rows) < 0:
                allowed = f"numbers from 0 that sum to {batch}"
                raise SettingError(f"rows[{layer}]", list(rows), allowed)
        return result

    def partitions(self, batch: int) -> tuple[Mapping[int, int], ...]:
        """Return layers' rows by device, without empty ones."""
        return tuple(
            {d: r for d, r in zip(devices, rows, strict=True) if r}
            for devices, rows in zip(self.copies, self.shares(batch), strict=True)
        )

    def replicated(self, layers: Iterable[int], device: int) -> Placement:
        """Return the placement with copies of layers on another device, with even shares.

        Raises:
          SettingError: a layer that the device holds.
        """
        changed = list(self.copies)
        for layer in self._known(layers):
            if device in changed[layer]:
                raise SettingError("layers", layer, f"a layer without a copy on device {device}")
            changed[layer] = (*changed[layer], device)
        return replace(self, copies=tuple(changed), rows=())

    def evicted(self, layers: Iterable[int], device: int) -> Placement:
        """Return the placement without a device's copies of layers, with even shares.

        Raises:
          SettingError: no copy there, or the last one.
        """
        changed = list(self.copies)
        for layer in self._known(layers):
            if device not in changed[layer]:
                raise SettingError("layers", layer, f"a layer with a copy on device {device}")
            if len(changed[layer]) == 1:
                raise SettingError(
                    "layers", layer, f"a layer with another copy than device {device}'s"
                )
            changed[layer] = tuple(d for d in changed[layer] if d != device)
        return replace(self, copies=tuple(changed), rows=())

    def migrated(
        self, layers: Iterable[int], source: int, device: int, module: str = "layer"
    ) -> Placement:
        """Return the placement with layers, or a module of each, moved.

        Raises:
          SettingError: the source lacks a layer, or the target holds it.
        """
        chosen = self._known(layers)
        for layer in chosen:
            if source not in self.copies[layer]:
                raise SettingError("layers", layer, f"a layer with a copy on device {source}")
            if device in self.copies[layer]:
                raise SettingError("layers", layer, f"a layer without a copy on device {device}")
        if module != "layer":
            parts = [p for p in self.parts if p.layer not in chosen or p.module != module]
            moved = (Part(layer, module, device) for layer in chosen)
            return replace(self, parts=tuple(sorted([*parts, *moved])))
        changed = list(self.copies)
        for layer in chosen:
            changed[layer] = tuple(device if d == source else d for d in changed[layer])
        return replace(self, copies=tuple(changed))

    def _known(self, layers: Iterable[int]) -> Sequence[int]:
        chosen = tuple(layers)
        for layer in chosen:
            if not 0 <= layer < self.layers:
                raise SettingError("layers", layer, f"a layer's index, 0 to {self.layers - 1}")
        if len(set(chosen)) < len(chosen):
            raise SettingError("layers", list(chosen), "each layer once")
        return chosen


def even_rows(batch: int, copies: int) -> tuple[int, ...]:
    """Return the rows of a batch by copy, as even as possible, larger shares first.

    >>> even_rows(15, 2)
    (8, 7)
    """
    share, rest = divmod(batch, copies)
    return tuple(share + (k < rest) for k in range(copies))
