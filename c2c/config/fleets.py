"""Parts of a fleet: by `hardware`, or several by `fleet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from c2c.config.layout import CUSTOM, NAMELESS, PLANNED
from c2c.config.nodes import is_default_hardware
from c2c.errors import SettingError
from c2c.hardware import (
    Node,
    Platform,
    conf_name,
    grouped,
    load_platform,
    platform_from_mapping,
    scaled,
    slices,
)
from c2c.ranges import Count, check_value
from c2c.serving import Prepared, SystemSpec

__all__ = ["GivenPart", "given_parts", "kept_off", "of_devices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPart:
    """A part of a fleet.

    Attributes:
      where: prefix in errors, such as "fleet.parts[0].".
      mig: see `c2c.hardware.mig_from_mapping`.
      count: chips, or groups of `tensor_parallel` chips.
    """

    where: str
    platform: Platform
    mig: Mapping[str, Any]
    count: int
    constants: str


def given_parts(plain: Mapping[str, Any], node: Node | None) -> tuple[GivenPart, ...]:
    """Return a fleet's parts, `superchips` times."""
    entries, copies = plain["fleet"]["parts"], plain["superchips"]
    if not entries:
        if plain["fleet"]["name"] is not None:
            raise SettingError("fleet.parts", [], "at least one, such as {hardware: gh200}")
        is_whole = node is not None and node.chip is None
        chip = node.platforms[0] if node and is_whole else platform_from_mapping(plain["hardware"])
        one = GivenPart(
            where="", platform=scaled(chip, **plain["scale"]), mig=plain["mig"],
            count=copies, constants=plain["constants"],
        )  # fmt: skip
        return (_in_groups(one, plain, node),)
    for field, works, shown in (
        ("node", node is None, node and node.name),
        ("hardware", is_default_hardware(plain), plain["hardware"].get("name")),
        ("mig", dict(plain["mig"]) == NAMELESS["auto"], plain["mig"].get("name")),
        ("constants", plain["constants"] == "auto", plain["constants"]),
    ):
        if not works:
            raise SettingError(
                field, shown, "no value beside a fleet, whose parts set it",
                "Set fleet.parts=[{hardware: ..., mig: ..., count: ...}].",
            )  # fmt: skip
    parts = [_part(one, f"fleet.parts[{k}].", plain) for k, one in enumerate(entries)]
    return tuple(_in_groups(part, plain, None) for part in parts)


def of_devices(system: SystemSpec, count: int) -> SystemSpec:
    """Return the system for devices of `count` chips."""
    if count == 1:
        return system
    engines, apart, cache = system.engines, system.disaggregation, system.prefix_cache
    return replace(
        system,
        hbm_reserve_bytes=count * system.hbm_reserve_bytes,
        engines=replace(
            engines, bytes=count * engines.bytes, kv_host_bytes=count * engines.kv_host_bytes
        ),
        disaggregation=replace(apart, hand_over_gbps=count * apart.hand_over_gbps),
        prefix_cache=replace(cache, host_bytes=count * cache.host_bytes),
    )


def _in_groups(part: GivenPart, plain: Mapping[str, Any], node: Node | None) -> GivenPart:
    count, apart, mig = plain["tensor_parallel"], plain["expert_parallel"], dict(part.mig)
    if count == 1 and apart:
        raise SettingError("expert_parallel", True, "false with tensor_parallel=1")
    if count == 1:
        return part
    if node is not None:
        raise SettingError("tensor_parallel", count, "1 with a node")
    if mig != NAMELESS["auto"] and mig.get("name") != part.platform.mig[0]:
        raise SettingError(
            f"{part.where}mig", mig.get("name"),
            f"auto or {part.platform.mig[0]} with tensor_parallel={count}",
            "A MIG slice cannot use another GPU's memory.",
        )  # fmt: skip
    if part.count % count:
        field = f"{part.where}count" if part.where else "superchips"
        raise SettingError(
            field, part.count, f"a multiple of the {count} chips of tensor_parallel",
            f"Set superchips={-(-part.count // count) * count}." if not part.where else "",
        )  # fmt: skip
    together = grouped(part.platform, count, variant=plain["link"], experts_apart=apart)
    return replace(part, platform=together, count=part.count // count)


def kept_off(prepared: Prepared) -> tuple[str, ...]:
    """Return notes on models that only some parts serve."""
    names = [d.name for d in prepared.setup.deployments]
    lines = []
    for p, part in enumerate(prepared.setup.parts):
        here = [name for name, some in zip(names, prepared.serves[:, p], strict=True) if not some]
        if here and part.nodes is None:
            lines.append(
                f"{part.platform.name}, mig {part.layout}: serves {len(names) - len(here)} of "
                f"{len(names)} models; others lack room or cannot meet targets: "
                + ", ".join(here[:3])
                + (f" and {len(here) - 3} more" if len(here) > 3 else "")
            )
    return tuple(lines)


def _part(entry: Mapping[str, Any], where: str, plain: Mapping[str, Any]) -> GivenPart:
    name, count, mig = entry["hardware"], entry["count"], entry["mig"]
    check_value(count, Count, f"{where}count")
    platform = load_platform(conf_name("hardware", name, f"{where}hardware"))
    is_list = isinstance(mig, Sequence) and not isinstance(mig, str)
    if mig == PLANNED or not (is_list or isinstance(mig, str)):
        raise SettingError(
            f"{where}mig", mig, f"auto, one of {', '.join(platform.mig)}, or a list of profiles"
        )
    settings = {"name": CUSTOM, "parts": mig} if is_list else {"name": mig}
    if not is_list and mig != "auto":
        try:
            slices(platform, mig)
        except SettingError as error:
            raise SettingError(f"{where}mig", mig, error.allowed, error.hint) from None
    return GivenPart(
        where=where, platform=scaled(platform, **plain["scale"]), mig=settings,
        count=count * plain["superchips"],
        constants=entry["constants"],
    )  # fmt: skip
