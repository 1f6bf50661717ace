"""MIG layouts, and the slices of a chip that they give."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from c2c.errors import SettingError
from c2c.hardware.conf import check_positive, read_fields, read_yaml
from c2c.hardware.platform import Gpu, Platform, load_platform

__all__ = [
    "MigConfig",
    "MigProfile",
    "Slice",
    "load_mig",
    "mig_configs",
    "mig_from_mapping",
    "slices",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """What one instance may use on one platform. Values and sources are in `conf/mig/*.yaml`.

    `chip` is the GPU the values are of: an instance keeps its share when the chip is changed.
    """

    name: str  # the vendor's name, e.g. "1g.12gb"
    platform: str
    sm_count: int
    hbm_bytes: int
    hbm_gbps: float
    chip: Gpu
    source: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        where = f"mig.{self.name}"
        for name, limit in (
            ("sm_count", self.chip.sm_count),
            ("hbm_bytes", self.chip.hbm_bytes),
            ("hbm_gbps", self.chip.hbm_gbps),
        ):
            value = getattr(self, name)
            check_positive(f"{where}.{name}", value, whole=name != "hbm_gbps")
            if value > limit:
                raise SettingError(
                    f"{where}.{name}", value, f"at most {limit:g}, all of {self.platform}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigConfig:
    """A layout: equal instances, with a profile for each platform it exists on."""

    name: str  # "7x12gb"; "1x96gb" is the full GPU
    instances: int
    profiles: tuple[MigProfile, ...]

    def __post_init__(self) -> None:
        check_positive(f"mig.{self.name}.instances", self.instances, whole=True)
        if not self.profiles or len({p.platform for p in self.profiles}) != len(self.profiles):
            raise SettingError(
                f"mig.{self.name}.profiles", self.platforms, "at least one, each platform once"
            )
        for p in self.profiles:
            for name in ("sm_count", "hbm_bytes", "hbm_gbps"):
                total, limit = self.instances * getattr(p, name), getattr(p.chip, name)
                if total > limit * (1 + 1e-9):
                    raise SettingError(
                        f"mig.{self.name}.{p.platform}.{name}",
                        getattr(p, name),
                        f"{self.instances} instances within the chip's {limit:g}",
                    )

    @property
    def platforms(self) -> tuple[str, ...]:
        """Names of the platforms the layout exists on."""
        return tuple(p.platform for p in self.profiles)

    def profile_on(self, platform: str) -> MigProfile:
        """Return the profile of one instance on a platform.

        Raises:
          SettingError: the layout does not exist there.
        """
        for p in self.profiles:
            if p.platform == platform:
                return p
        raise SettingError(
            "mig", self.name, f"a layout of {platform}; {self.name} exists on "
            f"{', '.join(self.platforms)}",
        )  # fmt: skip

    @property
    def profile(self) -> MigProfile:
        """The profile, where the layout exists on one platform only; else use `profile_on`."""
        if len(self.profiles) != 1:
            raise SettingError("platform", None, f"one of {', '.join(self.platforms)}")
        return self.profiles[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What one MIG instance may use. `link_cap_gbps` is what it draws when alone on the link."""

    name: str
    sm_count: int
    hbm_bytes: int
    hbm_gbps: float
    bf16_tflops: float
    l2_bytes: int
    link_cap_gbps: float


def mig_configs(platform: Platform | str) -> tuple[str, ...]:
    """Return the names of the MIG layouts of a platform, the full GPU first."""
    return (platform if isinstance(platform, Platform) else load_platform(platform)).mig


def load_mig(name: str) -> MigConfig:
    """Return the layout of `conf/mig/<name>.yaml`.

    Raises:
      SettingError: unknown name, or a value that cannot be; names file and field.
    """
    return mig_from_mapping(read_yaml("mig", name), where=f"mig.{name}")


def mig_from_mapping(data: Mapping[str, Any], *, where: str = "mig") -> MigConfig:
    """Build a layout from data in the form of `conf/mig/*.yaml`, as Hydra composes it.

    Args:
      data: name, instances, and whole_gpu (platforms on which it is the whole chip) or profiles
        (platform -> name, sm_count, hbm_bytes, hbm_gbps, source).
      where: prefix of the field names in errors.

    Raises:
      SettingError: a field is missing, unknown or out of range.
    """
    known = ("name", "instances", "whole_gpu", "profiles")
    for key in data:
        if key not in known:
            raise SettingError(f"{where}.{key}", data[key], f"one of {', '.join(known)}")
    name, instances = data.get("name"), data.get("instances")
    if not isinstance(name, str) or not name:
        raise SettingError(f"{where}.name", name, "the layout's name")
    check_positive(f"{where}.instances", instances, whole=True)
    whole = data.get("whole_gpu") or ()
    cut = data.get("profiles") or {}
    if isinstance(whole, str):
        raise SettingError(f"{where}.whole_gpu", whole, "a list of platforms")
    if not isinstance(cut, Mapping):
        raise SettingError(f"{where}.profiles", cut, "a mapping from platforms to profiles")
    if whole and instances != 1:
        raise SettingError(f"{where}.instances", instances, "1, as the layout is the whole GPU")
    profiles = [_whole(str(p), load_platform(str(p)).gpu) for p in whole]
    for platform, entry in cut.items():
        chip = load_platform(str(platform)).gpu
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
    """A profile as written in `conf/mig`."""

    name: str
    sm_count: int
    hbm_bytes: int
    hbm_gbps: float
    source: Mapping[str, str]


def _whole(platform: str, gpu: Gpu) -> MigProfile:
    return MigProfile(
        name="full",
        platform=platform,
        sm_count=gpu.sm_count,
        hbm_bytes=gpu.hbm_bytes,
        hbm_gbps=gpu.hbm_gbps,
        chip=gpu,
        source=gpu.source,
    )


def slices(platform: Platform, mig: MigConfig | str) -> tuple[Slice, ...]:
    """Return the slices of a chip in a MIG layout.

    A slice has the profile's share of the chip's SMs and HBM, so a platform whose values were
    changed gives slices changed in proportion. Tensor-core peak goes by SMs, L2 by HBM capacity.
    Alone on the link a slice draws at most what its SMs keep in flight over the latency.

    Args:
      platform: the chip with its link.
      mig: the layout or its name.

    Raises:
      SettingError: the layout does not exist on the chip; lists those that do.
    """
    name = mig if isinstance(mig, str) else mig.name
    if name not in platform.mig:
        raise SettingError("mig", name, f"a layout of {platform.name}: {', '.join(platform.mig)}")
    config = load_mig(mig) if isinstance(mig, str) else mig
    profile = config.profile_on(platform.name)
    gpu, chip, link = platform.gpu, profile.chip, platform.link
    sm_count = max(1, round(profile.sm_count * gpu.sm_count / chip.sm_count))
    in_flight_gbps = sm_count * link.inflight_bytes_per_sm / link.link_latency_s / 1e9
    one = Slice(
        name=f"{platform.name}/{config.name}",
        sm_count=sm_count,
        hbm_bytes=round(profile.hbm_bytes * gpu.hbm_bytes / chip.hbm_bytes),
        hbm_gbps=profile.hbm_gbps * gpu.hbm_gbps / chip.hbm_gbps,
        bf16_tflops=gpu.bf16_tflops * sm_count / gpu.sm_count,
        l2_bytes=round(gpu.l2_bytes * profile.hbm_bytes / chip.hbm_bytes),
        link_cap_gbps=min(link.datasheet_gbps, in_flight_gbps),
    )
    return (one,) * config.instances
