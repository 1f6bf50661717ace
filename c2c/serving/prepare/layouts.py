"""The layouts of a chip over a run: whose devices are there from the start, and which change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from c2c.errors import SettingError
from c2c.hardware import MigConfig, Platform, Slice, placed, reconfiguration, slices
from c2c.serving.prepare.settings import LayoutChange

__all__ = ["Change", "ChipLayouts", "chip_layouts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the layout of every chip.

    Attributes:
      setting: what was asked for.
      leaves, comes: positions in `ChipLayouts.slices`.
      kept: likewise, of those that serve on.
      seconds: of destroying and creating, once those that leave hold nothing.
    """

    setting: LayoutChange
    leaves: tuple[int, ...]
    comes: tuple[int, ...]
    kept: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipLayouts:
    """Every slice that a chip has at some time.

    Attributes:
      slices: those of the first layout, then what each change brings. A slice that is destroyed and
        made again stands there twice.
      layouts: positions of the slices of each layout, in order of time.
      changes: from each layout to the next.
    """

    slices: tuple[Slice, ...]
    layouts: tuple[tuple[int, ...], ...]
    changes: tuple[Change, ...]

    @property
    def present(self) -> np.ndarray:
        """Whether each slice is there at the start."""
        return np.arange(len(self.slices)) < len(self.layouts[0])

    def together(self, kind: Slice) -> int:
        """Return the most slices of a layout that has one of this kind."""
        return max(len(at) for at in self.layouts if kind in [self.slices[k] for k in at])


def chip_layouts(
    platform: Platform, mig: MigConfig | str, changes: Sequence[LayoutChange] = ()
) -> ChipLayouts:
    """Return what a chip is cut into over a run.

    Raises:
      SettingError: a layout that the chip lacks, or a change to the layout that is there.
    """
    first_layout = _cut(platform, mig)
    every = list(first_layout.values())
    here = {place: at for at, place in enumerate(first_layout)}
    layouts, made = [tuple(here.values())], []
    before: MigConfig | str = mig
    for k, change in enumerate(changes):
        after = _cut(platform, change.mig)
        leaves = tuple(at for place, at in here.items() if place not in after)
        kept = {place: at for place, at in here.items() if place in after}
        comes = [place for place in after if place not in here]
        if not leaves and not comes:
            raise SettingError(f"mig_changes[{k}].mig", _name(change.mig), "another layout")
        first = len(every)
        every += [after[place] for place in comes]
        here = kept | dict(zip(comes, range(first, len(every)), strict=True))
        layouts.append(tuple(sorted(here.values())))
        made.append(
            Change(
                setting=change,
                leaves=leaves,
                comes=tuple(range(first, len(every))),
                kept=tuple(sorted(kept.values())),
                seconds=reconfiguration(platform, before, change.mig).seconds,
            )
        )
        before = change.mig
    return ChipLayouts(slices=tuple(every), layouts=tuple(layouts), changes=tuple(made))


def _cut(platform: Platform, mig: MigConfig | str) -> dict[tuple[str, int], Slice]:
    # The slices of a layout by profile and place, in order; those of no known place are numbered.
    found = slices(platform, mig)
    places = [(one.profile.name, one.start) for one in placed(platform, mig)]
    return dict(zip(places or [("", k) for k in range(len(found))], found, strict=True))


def _name(mig: MigConfig | str) -> str:
    return mig if isinstance(mig, str) else mig.name
