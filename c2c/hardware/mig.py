"""MIG profiles and layouts."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from c2c.errors import SettingError
from c2c.hardware.conf import conf_names, read_yaml
from c2c.hardware.platform import Gpu
from c2c.ranges import AboveZero, Count, check_fields

__all__ = ["MigConfig", "MigProfile", "is_layout_name", "load_mig", "mig_from_mapping"]


WHOLE = "full"  # the profile of a chip that is not cut
# A profile or its memory, with a count before it; "1xcpu" is the CPU as a whole.
_ITEM = re.compile(r"(?:([1-9]\d?)x)?(\d+g(?:\.\d+gb)?|\d+gb|cpu)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """Resources of an instance on the GPU `chip`; an instance keeps its share of a changed chip."""

    name: str  # the vendor's name, e.g. "1g.12gb"
    sm_count: Count
    hbm_bytes: Count
    hbm_gbps: AboveZero
    chip: Gpu
    source: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        where = f"mig.{self.name}"
        check_fields(self, where)
        for name, limit in (
            ("sm_count", self.chip.sm_count),
            ("hbm_bytes", self.chip.hbm_bytes * (2**30 / 1e9)),  # a vendor's GB of HBM are GiB
            ("hbm_gbps", self.chip.hbm_gbps),
        ):
            value = getattr(self, name)
            if value > limit:
                raise SettingError(
                    f"{where}.{name}", value, f"at most {limit:g}, all of {self.chip.name}"
                )

    @property
    def compute_slices(self) -> int:
        """Compute slices, by the vendor's name."""
        return int(self.name.partition("g.")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class MigConfig:
    """A layout: each instance's profile, by name in `parts` or given in `profiles`.

    A part is the vendor's name, "3g.48gb"; "3g", with least memory; or "24gb", with most compute
    slices of which as many fit.
    """

    name: str  # "7x12gb"; the platform's first, such as "1x96gb", is the full GPU
    parts: tuple[str, ...] = ()
    profiles: tuple[MigProfile, ...] = ()

    def __post_init__(self) -> None:
        if not self.parts and not self.profiles:
            raise SettingError(f"mig.{self.name}.parts", self.parts, "at least one")

    @property
    def instances(self) -> int:
        """Number of instances."""
        return len(self.profiles or self.parts)

    @property
    def is_named(self) -> bool:
        """True if the layout's name says its parts."""
        return self.parts == _named(self.name)


def is_layout_name(name: str) -> bool:
    """Return whether a name says parts: 7x12gb, 3g_4x1g, 3g.48gb_2x2g."""
    return all(_ITEM.fullmatch(item) for item in name.split("_"))


def load_mig(name: str) -> MigConfig:
    """Return a layout by its name or file.

    >>> load_mig("3g_2x2g").parts
    ('3g', '2g', '2g')
    """
    if not is_layout_name(name) and name in conf_names("mig"):
        return mig_from_mapping(read_yaml("mig", name), where=f"mig.{name}")
    return MigConfig(name=name, parts=_named(name))


def mig_from_mapping(data: Mapping[str, Any], *, where: str = "mig") -> MigConfig:
    """Build a layout from a mapping, as Hydra composes it.

    Args:
      data: name, and parts unless named; "4x1g" is four of one.
      where: prefix in errors.

    Raises:
      SettingError: a missing, unknown or invalid field.
    """
    keys = ("name", "parts")
    for key in data:
        if key not in keys:
            is_old = key in ("instances", "whole_gpu", "profiles")
            hint = "Profiles are in a file of mig_table: docs/recipes.md#a-chip." if is_old else ""
            raise SettingError(f"{where}.{key}", data[key], f"a key among {', '.join(keys)}", hint)
    name = data.get("name")
    if not isinstance(name, str) or not name:
        raise SettingError(f"{where}.name", name, "the layout's name")
    if "parts" not in data:
        return MigConfig(name=name, parts=_named(name))
    value = data["parts"]
    items = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if not items or not all(is_layout_name(str(item)) for item in items):
        raise SettingError(
            f"{where}.parts", value, "a list of profiles, such as [3g.48gb, 4x1g.12gb]"
        )
    return MigConfig(name=name, parts=_named("_".join(map(str, items))))


def _named(name: str) -> tuple[str, ...]:
    matches = [_ITEM.fullmatch(item) for item in name.split("_")]
    parts = [[one[2]] * int(one[1] or 1) for one in matches if one is not None]
    return tuple(part for several in parts for part in several) if None not in matches else (name,)
