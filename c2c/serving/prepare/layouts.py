"""MIG layouts of a chip over a run: initial slices, changes and choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from c2c.errors import SettingError
from c2c.hardware import MigConfig, Platform, Slice, placed, reconfiguration, slices
from c2c.serving.prepare.parts import LayoutChange

__all__ = ["Change", "ChipLayouts", "chip_layouts", "layouts_to_choose"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of every chip's layout.

    Attributes:
      setting: the setting that asks for it.
      before: layout that it replaces.
      leaves, comes: indices in `ChipLayouts.slices` of removed and added slices.
      kept: indices in `ChipLayouts.slices` of unchanged slices.
      seconds: time to destroy and create slices, once the leaving ones are empty.
    """

    setting: LayoutChange
    before: MigConfig | str
    leaves: tuple[int, ...]
    comes: tuple[int, ...]
    kept: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipLayouts:
    """All slices that a chip has at any time.

    Attributes:
      slices: slices of the first layout, then those that each change adds. A slice that is
        destroyed and created again appears twice.
      layouts: indices of the slices of each layout, in order of time; a policy's choices are in any
        order, each once.
      changes: change from each layout to the next.
      choices: layouts that a policy may choose; the first is the initial one.
    """

    slices: tuple[Slice, ...]
    layouts: tuple[tuple[int, ...], ...]
    changes: tuple[Change, ...] = ()
    choices: tuple[MigConfig | str, ...] = ()

    @property
    def may_change(self) -> bool:
        """True if slices may be added or removed."""
        return len(self.layouts) > 1

    @property
    def present(self) -> np.ndarray:
        """True for each slice of the initial layout."""
        return np.isin(np.arange(len(self.slices)), self.layouts[0])

    def together(self, kind: Slice) -> int:
        """Return the largest number of slices of any layout that has this kind."""
        return max(len(at) for at in self.layouts if kind in [self.slices[k] for k in at])

    def without(self, numbers: Sequence[int]) -> ChipLayouts:
        """Return the choices without some layouts, by their numbers."""
        left = [k for k in range(len(self.layouts)) if k not in numbers]
        return replace(
            self,
            layouts=tuple(self.layouts[k] for k in left),
            choices=tuple(self.choices[k] for k in left if self.choices),
        )

    def only(self, number: int) -> ChipLayouts:
        """Return a single layout that never changes."""
        return replace(self, layouts=(self.layouts[number],), choices=())

    def changed(self, change: Change) -> ChipLayouts:
        """Return the layout after a change begins, and the change."""
        kept, comes = change.kept, change.comes
        layouts = (tuple(sorted(kept + change.leaves)), tuple(sorted(kept + comes)))
        return replace(self, layouts=layouts, changes=(change,), choices=())

    def change(
        self, platform: Platform, before: int, after: int, *, at_s: float, drain: bool
    ) -> Change:
        """Return the change from one of the choices to another, by their numbers."""
        here, there = self.layouts[before], self.layouts[after]
        was, mig = self.choices[before], self.choices[after]
        return Change(
            setting=LayoutChange(at_s=at_s, mig=mig, drain=drain),
            before=was,
            leaves=tuple(k for k in here if k not in there),
            comes=tuple(k for k in there if k not in here),
            kept=tuple(k for k in here if k in there),
            seconds=reconfiguration(platform, was, mig).seconds,
        )


def layouts_to_choose(platform: Platform, choices: Sequence[MigConfig | str]) -> ChipLayouts:
    """Return the layouts that a policy may choose again and again; the first is the initial one."""
    known: dict[tuple[str, int], Slice] = {}
    cut = [_cut(platform, mig) for mig in choices]
    for layout in cut:
        for place, found in layout.items():
            known.setdefault(place, found)
    at = {place: k for k, place in enumerate(known)}
    return ChipLayouts(
        slices=tuple(known.values()),
        layouts=tuple(tuple(sorted(at[place] for place in layout)) for layout in cut),
        choices=tuple(choices),
    )


def chip_layouts(
    platform: Platform, mig: MigConfig | str, changes: Sequence[LayoutChange] = ()
) -> ChipLayouts:
    """Return the layouts of a chip over a run.

    Raises:
      SettingError: a layout that the chip lacks, or a change to the present layout.
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
                before=before,
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
