"""Slices of a chip under a MIG layout."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from c2c.errors import SettingError
from c2c.hardware.conf import bases, conf_names, read_fields, read_yaml
from c2c.hardware.mig import WHOLE, MigConfig, MigProfile, load_mig
from c2c.hardware.placement import Extent, Partition, free_for, starts, where_they_go
from c2c.hardware.platform import Gpu, Platform, Ranks, load_platform

__all__ = ["Placed", "Slice", "joined", "placed", "profiles", "slices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Resources of a slice: a MIG instance (`is_cut`), a whole chip, or several GPUs (`ranks`).

    `link_cap_gbps` is its rate alone. `kernels_read`: see `Link`.
    """

    name: str
    sm_count: int
    hbm_bytes: int
    hbm_gbps: float
    bf16_tflops: float
    l2_bytes: int
    link_cap_gbps: float
    is_cut: bool = False
    ranks: Ranks | None = None
    kernels_read: bool = True


def joined(name: str, gpus: Sequence[Gpu], link_gbps: float) -> Slice:
    """Return whole GPUs as one slice of their sums."""
    return Slice(
        name=name,
        sm_count=sum(g.sm_count for g in gpus),
        hbm_bytes=sum(g.hbm_bytes for g in gpus),
        hbm_gbps=sum(g.hbm_gbps for g in gpus),
        bf16_tflops=sum(g.bf16_tflops for g in gpus),
        l2_bytes=sum(g.l2_bytes for g in gpus),
        link_cap_gbps=link_gbps,
    )


class Placed(NamedTuple):
    """An instance, and its first memory slice."""

    profile: MigProfile
    start: int


def slices(platform: Platform, mig: MigConfig | str) -> tuple[Slice, ...]:
    """Return the slices of a chip in a MIG layout, in the order of its parts.

    A slice has its profile's share of SMs and tensor-core peak, and of HBM and L2. Alone it draws
    at most its SMs' bytes in flight over the latency.

    Raises:
      SettingError: no such layout, or unfitting parts.
    """
    config = load_mig(mig) if isinstance(mig, str) else mig
    chosen = _chosen(platform, config)
    is_one_kind = config.profiles or (config.is_named and len(set(config.parts)) == 1)
    name = config.name if is_one_kind else None
    return tuple(_slice(platform, p, f"{platform.name}/{name or p.name}") for p in chosen)


def placed(platform: Platform, mig: MigConfig | str) -> tuple[Placed, ...]:
    """Return a layout's instances with starts; () for the whole chip.

    Raises:
      SettingError: see `slices`.
    """
    config = load_mig(mig) if isinstance(mig, str) else mig
    chosen, chip = _chosen(platform, config), platform.partition
    positions = chip and where_they_go([_extent(p, chip) for p in chosen if p.name != WHOLE], chip)
    return tuple(Placed(*one) for one in zip(chosen, positions or (), strict=False))


def profiles(platform: Platform) -> tuple[MigProfile, ...]:
    """Return a platform's profiles, small ones first.

    A chip without its own has those of the nearest base of its file.

    Raises:
      SettingError: a missing or wrong table of `conf/mig_table`.
    """
    chip, table = platform.partition, platform.mig_table
    every = read_yaml("mig_table", table) if chip else {}
    is_file = platform.name in conf_names("hardware")
    names = (platform.name, *(bases("hardware", platform.name) if is_file else ()))
    owner = next((name for name in names if every.get(name)), None)
    if chip is None or owner is None:
        return ()
    rows, where = dict(every[owner]), f"mig_table.{table}.{owner}"
    source, gpu = rows.pop("source", None), load_platform(owner).gpu

    def profile(name: str, entry: Any) -> MigProfile:
        if not isinstance(entry, Mapping) or not re.match(r"[1-9]\d*g\.\d", str(name)):
            raise SettingError(
                where, {name: entry}, "profiles, such as 1g.12gb: {sm_count: 16, hbm_bytes: ...}"
            )
        text = dict.fromkeys(("sm_count", "hbm_bytes"), entry.get("source", source))
        row = read_fields(_Row, {**entry, "source": text}, f"{where}.{name}")
        share = _memory_slices(row.hbm_bytes, gpu, chip) / chip.memory_slices
        return MigProfile(
            name=name, sm_count=row.sm_count, hbm_bytes=row.hbm_bytes,
            hbm_gbps=gpu.hbm_gbps * share, chip=gpu, source=row.source,
        )  # fmt: skip

    result = [profile(name, entry) for name, entry in rows.items()]
    return tuple(sorted(result, key=lambda p: (p.compute_slices, p.hbm_bytes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    sm_count: int
    hbm_bytes: int
    source: Mapping[str, str]


def _slice(platform: Platform, profile: MigProfile, name: str) -> Slice:
    gpu, chip, link = platform.gpu, profile.chip, platform.link
    sm_count = max(1, round(profile.sm_count * gpu.sm_count / chip.sm_count))
    is_cut, cut = profile.name != WHOLE, platform.partition
    share = profile.hbm_bytes / chip.hbm_bytes
    if is_cut and cut is not None:
        share = _extent(profile, cut).memory / cut.memory_slices
    in_flight_gbps = sm_count * link.inflight_bytes_per_sm / link.link_latency_s / 1e9
    return Slice(
        name=name,
        sm_count=sm_count,
        hbm_bytes=round(profile.hbm_bytes * gpu.hbm_bytes / chip.hbm_bytes),
        hbm_gbps=profile.hbm_gbps * gpu.hbm_gbps / chip.hbm_gbps,
        bf16_tflops=gpu.bf16_tflops * sm_count / gpu.sm_count,
        l2_bytes=round(gpu.l2_bytes * share),
        link_cap_gbps=min(link.datasheet_gbps, in_flight_gbps),
        is_cut=is_cut,
        ranks=platform.ranks,
        kernels_read=link.kernels_read,
    )


def _chosen(platform: Platform, config: MigConfig) -> tuple[MigProfile, ...]:
    if config.profiles:
        return config.profiles
    if config.name == platform.mig[0]:
        gpu = platform.gpu
        return (
            MigProfile(
                name=WHOLE, sm_count=gpu.sm_count, hbm_bytes=gpu.hbm_bytes,
                hbm_gbps=gpu.hbm_gbps, chip=gpu, source=gpu.source,
            ),
        )  # fmt: skip
    options, chip = profiles(platform), platform.partition
    names = ", ".join(p.name for p in options)
    demand = f"a layout of {platform.name}: {', '.join(platform.layouts)}"
    hint = f"Or profiles that fit together, such as 3g_4x1g, of {names}." if options else ""
    if chip is not None and not options:
        hint = f"No chip of mig_table.{platform.mig_table} is it, or what its file is based on."
        raise SettingError("mig", config.name, "a layout whose profiles have a table", hint)
    if chip is None:
        raise SettingError("mig", config.name, demand)
    profile_of: dict[str, MigProfile] = {}
    for part, count in Counter(config.parts).items():
        alike = [p for p in options if part in (p.name, *p.name.split("."))]
        if not alike and config.is_named:
            raise SettingError("mig", config.name, demand, hint)
        if not alike:
            raise SettingError("mig.parts", part, f"a profile of {platform.name}: {names}")
        is_memory = alike[0].name.endswith(f".{part}")
        fitting = [
            p for p in alike if is_memory and where_they_go([_extent(p, chip)] * count, chip)
        ]
        profile_of[part] = fitting[-1] if fitting else alike[0]
    chosen = tuple(profile_of[part] for part in config.parts)
    if where_they_go([_extent(p, chip) for p in chosen], chip) is None:
        raise SettingError(
            "mig" if config.is_named else "mig.parts",
            config.name if config.is_named else _text(chosen),
            f"instances that fit {platform.name} together; its {chip.memory_slices} memory slices "
            f"hold {_rule(options, chip)}",
            _what_fits(chosen, options, chip),
        )
    return chosen


def _extent(profile: MigProfile, chip: Partition) -> Extent:
    return Extent(profile.compute_slices, _memory_slices(profile.hbm_bytes, profile.chip, chip))


def _memory_slices(nbytes: int, gpu: Gpu, chip: Partition) -> int:
    return max(1, round(nbytes / gpu.hbm_bytes * chip.memory_slices))


def _rule(profiles: Sequence[MigProfile], chip: Partition) -> str:
    def line(p: MigProfile) -> str:
        one = _extent(p, chip)
        return f"{p.name} ({one.memory}, from {' '.join(map(str, starts(one, chip)))})"

    return ", ".join(map(line, profiles))


def _text(several: Sequence[MigProfile]) -> str:
    counted = Counter(p.name for p in several)
    return " + ".join(name if n == 1 else f"{n}x{name}" for name, n in counted.items())


def _what_fits(
    chosen: Sequence[MigProfile], profiles: Sequence[MigProfile], chip: Partition
) -> str:
    n = len(chosen)
    while where_they_go([_extent(p, chip) for p in chosen[:n]], chip) is None:
        n -= 1
    fitting = [_extent(p, chip) for p in chosen[:n]]
    room = [(free_for(fitting, _extent(p, chip), chip), p.name) for p in profiles]
    more = " or ".join(f"{count}x{name}" for count, name in room if count)
    return f"Beside {_text(chosen[:n])} there is room for {more or 'nothing'}."
