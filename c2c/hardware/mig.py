"""MIG layouts: equal instances with a profile for each platform, or parts by profile names."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from c2c.errors import SettingError, check_keys
from c2c.hardware.conf import read_fields, read_yaml
from c2c.hardware.platform import Gpu, Platform, load_platform, platforms
from c2c.ranges import AboveZero, Count, check_fields, check_value

__all__ = [
    "MigConfig",
    "MigProfile",
    "load_mig",
    "mig_configs",
    "mig_from_mapping",
]


WHOLE = "full"  # the profile of a chip that is not cut


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """Resources of one instance on one platform. Values and sources are in `conf/mig/*.yaml`.

    `chip` is the GPU of these values; an instance keeps its share of a chip whose values change.
    """

    name: str  # the vendor's name, e.g. "1g.12gb"
    platform: str  # "gh200"; with "/" and the table if it is not the driver's: "gh200/paper"
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
            ("hbm_bytes", _most_bytes(self.chip)),
            ("hbm_gbps", self.chip.hbm_gbps),
        ):
            value = getattr(self, name)
            if value > limit:
                raise SettingError(
                    f"{where}.{name}", value, f"at most {limit:g}, all of {self.platform}"
                )

    @property
    def compute_slices(self) -> int:
        """Number of compute slices, the first digits of the vendor's name."""
        return int(self.name.partition("g.")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class MigConfig:
    """A layout: equal instances with a profile for each platform, or `parts`.

    `parts` names a profile for each instance: the vendor's name, or one without memory such as
    "3g", the profile of that many compute slices with least memory. `c2c.hardware.slices` resolves
    the names on a platform and checks that the instances fit together.
    """

    name: str  # "7x12gb"; "1x96gb" is the full GPU
    instances: Count
    profiles: tuple[MigProfile, ...] = ()
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, f"mig.{self.name}")
        if self.parts:
            if self.profiles or len(self.parts) != self.instances:
                raise SettingError(
                    f"mig.{self.name}.parts", self.parts, "a profile's name for each instance"
                )
            return
        if not self.profiles or len({p.platform for p in self.profiles}) != len(self.profiles):
            raise SettingError(
                f"mig.{self.name}.profiles", self.platforms, "at least one, each platform once"
            )
        for p in self.profiles:
            for name in ("sm_count", "hbm_bytes", "hbm_gbps"):
                limit = _most_bytes(p.chip) if name == "hbm_bytes" else getattr(p.chip, name)
                total = self.instances * getattr(p, name)
                if total > limit * (1 + 1e-9):
                    raise SettingError(
                        f"mig.{self.name}.{p.platform}.{name}",
                        getattr(p, name),
                        f"{self.instances} instances within the chip's {limit:g}",
                    )

    @property
    def platforms(self) -> tuple[str, ...]:
        """Names of the platforms on which the layout exists."""
        return tuple(p.platform for p in self.profiles)

    def profile_on(self, platform: str) -> MigProfile:
        """Return the profile of one instance on a platform, for a whole chip from any table.

        Raises:
          SettingError: the layout does not exist on the platform.
        """
        for p in self.profiles:
            if p.platform == platform:
                return p
            if p.name == WHOLE and p.platform == platform.partition("/")[0]:
                return p
        exists = ", ".join(self.platforms) or "no platform as equal instances"
        raise SettingError(
            "mig", self.name, f"a layout of {platform}; {self.name} exists on {exists}"
        )

    @property
    def profile(self) -> MigProfile:
        """Profile of a layout that exists on one platform only; for others use `profile_on`.

        Raises:
          SettingError: the layout has no profile or several.
        """
        if len(self.profiles) != 1:
            raise SettingError("platform", None, f"one of {', '.join(self.platforms)}")
        return self.profiles[0]


def mig_configs(platform: Platform | str) -> tuple[str, ...]:
    """Return the names of a platform's layouts of equal instances, the full GPU first."""
    return (platform if isinstance(platform, Platform) else load_platform(platform)).mig


def load_mig(name: str) -> MigConfig:
    """Return the layout of `conf/mig/<name>.yaml`.

    Raises:
      SettingError: unknown name, or an invalid value; names file and field.
    """
    return mig_from_mapping(read_yaml("mig", name), where=f"mig.{name}")


def mig_from_mapping(
    data: Mapping[str, Any], *, where: str = "mig", here: Platform | None = None
) -> MigConfig:
    """Build a layout from data in the form of `conf/mig/*.yaml`, as Hydra composes it.

    Args:
      data: name and either parts or instances. parts: names of profiles, "4x1g" for four of one.
        With instances: whole_gpu (platforms on which the layout is the whole chip) or profiles
        (`Platform.profiles_name` -> name, sm_count, hbm_bytes, hbm_gbps, source).
      where: prefix of the field names in errors.
      here: the run's platform, which may be from a user's folder; None: only shipped ones.

    Raises:
      SettingError: a field is missing, unknown or out of range.
    """
    known = ("name", "parts") if "parts" in data else ("name", "instances", "whole_gpu", "profiles")
    check_keys(data, known, where)
    name, instances = data.get("name"), data.get("instances")
    if not isinstance(name, str) or not name:
        raise SettingError(f"{where}.name", name, "the layout's name")
    if "parts" in data:
        parts = _parts(data["parts"], f"{where}.parts")
        return MigConfig(name=name, instances=len(parts), parts=parts)
    check_value(instances, Count, f"{where}.instances")
    whole = data.get("whole_gpu") or ()
    cut = data.get("profiles") or {}
    if isinstance(whole, str):
        raise SettingError(f"{where}.whole_gpu", whole, "a list of platforms")
    if not isinstance(cut, Mapping):
        raise SettingError(f"{where}.profiles", cut, "a mapping from platforms to profiles")
    if whole and instances != 1:
        raise SettingError(f"{where}.instances", instances, "1, as the layout is the whole GPU")
    own = {here.name: here} if here is not None and here.name not in platforms() else {}
    chips = {str(p): own.get(str(p)) or load_platform(str(p)) for p in whole}
    profiles = [_whole(name, chip.gpu) for name, chip in chips.items()]
    for platform, entry in cut.items():
        chip = load_platform(str(platform).partition("/")[0]).gpu
        spot = f"{where}.profiles.{platform}"
        row = read_fields(_ProfileRow, entry, spot)
        profiles.append(
            MigProfile(
                name=row.name,
                platform=str(platform),
                sm_count=row.sm_count,
                hbm_bytes=row.hbm_bytes,
                hbm_gbps=row.hbm_gbps,
                chip=chip,
                source=row.source,
            )
        )
    return MigConfig(name=name, instances=int(str(instances)), profiles=tuple(profiles))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProfileRow:
    """A profile as in a file of `conf/mig`."""

    name: str
    sm_count: int
    hbm_bytes: int
    hbm_gbps: float
    source: Mapping[str, str]


def _parts(given: object, where: str) -> tuple[str, ...]:
    """Return a profile's name for each instance: five for `[3g, 4x1g]`."""
    names: list[str] = []
    for one in given if isinstance(given, Sequence) and not isinstance(given, str) else ():
        found = re.fullmatch(r"(?:([1-9]\d?)x)?(\d+g(?:\.\d+gb)?)", str(one))
        if found is None:
            names.clear()
            break
        names += [found[2]] * int(found[1] or 1)
    if not names:
        raise SettingError(where, given, "a list of profiles, such as [3g.48gb, 4x1g.12gb]")
    return tuple(names)


def _most_bytes(chip: Gpu) -> float:
    """Return the most bytes that a chip's slices may have: a vendor's GB of HBM are GiB."""
    return chip.hbm_bytes * (2**30 / 1e9)


def _whole(platform: str, gpu: Gpu) -> MigProfile:
    return MigProfile(
        name=WHOLE,
        platform=platform,
        sm_count=gpu.sm_count,
        hbm_bytes=gpu.hbm_bytes,
        hbm_gbps=gpu.hbm_gbps,
        chip=gpu,
        source=gpu.source,
    )
