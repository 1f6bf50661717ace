"""Node in place of a platform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from c2c.config.layout import AUTO, PLANNED
from c2c.errors import SettingError
from c2c.hardware import (
    Node,
    conf_dir,
    conf_names,
    cut_node,
    link_gbps,
    load_platform,
    mig_from_mapping,
    node_from_mapping,
    platform_from_mapping,
    scaled,
)
from c2c.systems.mechanism import Mechanism

__all__ = ["is_default_hardware", "node_of"]


def node_of(plain: Mapping[str, Any], mechanisms: Sequence[Mechanism]) -> Node | None:
    """Return a run's node, or None."""
    has_layout = plain["system"].get("layout") is not None
    has_layout &= not any(mechanism.over_chips for mechanism in mechanisms)
    if not plain["node"]:
        if has_layout:
            names = ", ".join(conf_names("node"))
            raise SettingError("node", None, f"one of {names}, as system.layout needs a node")
        return None
    if not has_layout:
        raise SettingError(
            "node", plain["node"].get("name"), "no node without system.layout",
            f"Set system={' or '.join(_laid_out_systems())}.",
        )  # fmt: skip
    links = plain["node"].get("links")
    if plain["node"].get("gpus") == [] and isinstance(links, Mapping) and "link" in links:
        return _slices(plain)
    node = node_from_mapping(plain["node"])
    if dict(plain["mig"]) != {"name": "auto"}:
        allowed = "auto with a node of whole GPUs; with node=slices, the layout of `hardware`"
        raise SettingError("mig", plain["mig"].get("name"), allowed)
    for name, factor in plain["scale"].items():
        if factor != 1.0:
            raise SettingError(f"scale.{name}", factor, "1 with a node")
    chip = platform_from_mapping(plain["hardware"])
    if not (is_default_hardware(plain) or chip == load_platform(node.gpus[0])):
        raise SettingError(
            "hardware", plain["hardware"].get("name"),
            f"no value beside a node of {' and '.join(node.gpus)}",
            "Add a file to conf/node for another node.",
        )  # fmt: skip
    return node


def _slices(plain: Mapping[str, Any]) -> Node:
    chip = scaled(platform_from_mapping(plain["hardware"]), **plain["scale"])
    if plain["mig"].get("name") in (AUTO, PLANNED):
        allowed = f"a layout by name or parts with node=slices, such as {', '.join(chip.mig[1:])}"
        raise SettingError("mig", plain["mig"]["name"], allowed)
    link = plain["node"]["links"]["link"]
    if not isinstance(link, Mapping) or "latency_s" not in link:
        raise SettingError("node.links.link", link, "a mapping with latency_s, as of node=slices")
    rate = link.get("gbps")
    gbps = link_gbps(chip.link, plain["link"]) / 2.0 if rate is None else rate  # out, then in
    return cut_node(chip, mig_from_mapping(plain["mig"]), gbps=gbps, latency_s=link["latency_s"])


def is_default_hardware(plain: Mapping[str, Any]) -> bool:
    """Return whether a run's platform is the default."""
    platform = platform_from_mapping(plain["hardware"])
    return platform == load_platform(_hardware_by_default())


def _laid_out_systems() -> list[str]:
    folder = conf_dir() / "system"

    def lays_out(file: Path) -> bool:
        data = _read(file)
        defaults = [d for d in data.get("defaults", ()) if isinstance(d, Mapping)]
        names = [name for one in defaults for name in one.get("mechanism", ())]
        parts = [folder / "mechanism" / f"{name}.yaml" for name in names]
        layout = data.get("layout", {"mechanism": None})  # of a mechanism over the run's chips
        return "mechanism" not in layout or any("layout" in _read(part) for part in parts)

    return [file.stem for file in sorted(folder.glob("*.yaml")) if lays_out(file)]


def _hardware_by_default() -> str:
    groups = [d for d in _read(conf_dir() / "config.yaml")["defaults"] if isinstance(d, Mapping)]
    return next(str(group["hardware"]) for group in groups if "hardware" in group)


def _read(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))
