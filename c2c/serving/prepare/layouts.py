"""The layouts of a chip over a run: whose devices are there from the start, and which change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from c2c.errors import SettingError
from c2c.hardware import MigConfig, Platform, Slice, placed, reconfiguration, slices
from c2c.serving.prepare.settings import LayoutChange

__all__ = ["Change", "ChipLayouts", "chip_layouts", "layouts_to_choose"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the layout of every chip.

    Attributes:
      setting: what was asked for.
      before: the layout that it ends.
      leaves, comes: positions in `ChipLayouts.slices`.
      kept: likewise, of those that serve on.
      seconds: of destroying and creating, once those that leave hold nothing.
    """

    setting: LayoutChange
    before: MigConfig | str
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
      layouts: positions of the slices of each layout, in order of time; those that a policy may
        choose from come in any order, each once.
      changes: from each layout to the next.
      choices: the layouts that a policy may choose from, the first one is there at the start.
    """

    slices: tuple[Slice, ...]
    layouts: tuple[tuple[int, ...], ...]
    changes: tuple[Change, ...] = ()
    choices: tuple[MigConfig | str, ...] = ()

    @property
    def may_change(self) -> bool:
        """True where slices may come and go."""
        return len(self.layouts) > 1

    @property
    def present(self) -> np.ndarray:
        """True for each slice that is there at the start."""
        return np.isin(np.arange(len(self.slices)), self.layouts[0])

    def together(self, kind: Slice) -> int:
        """Return the most slices of a layout that has one of this kind."""
        return max(len(at) for at in self.layouts if kind in [self.slices[k] for k in at])

    def without(self, numbers: Sequence[int]) -> ChipLayouts:
        """Return the choices that are left without some layouts, by their numbers."""
        left = [k for k in range(len(self.layouts)) if k not in numbers]
        return replace(
            self,
            layouts=tuple(self.layouts[k] for k in left),
            choices=tuple(self.choices[k] for k in left if self.choices),
        )

    def only(self, number: int) -> ChipLayouts:
        """Return one of the layouts, for good."""
        return replace(self, layouts=(self.layouts[number],), choices=())

    def changed(self, change: Change) -> ChipLayouts:
        """Return the layout that a change begins with, and the change."""
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
    """Return what a chip may be cut into, over and over; the first layout is there at the start."""
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
