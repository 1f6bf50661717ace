"""A pair of GPUs in place of a platform, for systems whose instances lie over both."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from omegaconf import OmegaConf

from c2c.errors import SettingError
from c2c.hardware import Platform, conf_dir, load_platform, platform_from_mapping
from c2c.models import Deployment
from c2c.serving import SystemSpec

__all__ = ["laid_out", "pair_platform"]


def pair_platform(plain: Mapping[str, Any]) -> Platform | None:
    """Return the node of a pair's GPUs, its left GPU's; None where the run has no pair.

    Raises:
      SettingError: a pair without a layout over it, or a layout without a pair; beside a pair
        hardware, a layout of slices or a scale, which would change nothing.
    """
    has_layout = plain["system"].get("layout") is not None
    if has_layout and not plain["pair"]:
        names = ", ".join(sorted(p.stem for p in (conf_dir() / "pair").glob("*.yaml")))
        raise SettingError("pair", None, f"one of {names}, which system.layout lies over")
    if not plain["pair"]:
        return None
    if not has_layout:
        raise SettingError(
            "pair", plain["pair"].get("name"), "none, as system.layout lies over none",
            "Take system=tessera, pd, af or replicas.",
        )  # fmt: skip
    if dict(plain["mig"]) != {"name": "auto"}:
        raise SettingError("mig", plain["mig"].get("name"), "auto with a pair: GPUs are whole")
    for name, factor in plain["scale"].items():
        if factor != 1.0:
            raise SettingError(f"scale.{name}", factor, "1 with a pair")
    left = load_platform(str(plain["pair"].get("left")))
    if platform_from_mapping(plain["hardware"]) not in (
        load_platform(_hardware_by_default()),
        left,
    ):
        both = f"{plain['pair'].get('left')} and {plain['pair'].get('right')}"
        raise SettingError(
            "hardware", plain["hardware"].get("name"), f"nothing with a pair, which is {both}",
            "Another pair is a file in conf/pair.",
        )  # fmt: skip
    return left


def _hardware_by_default() -> str:
    """Return the platform that a run has where none is asked for."""
    groups = [
        d for d in OmegaConf.load(conf_dir() / "config.yaml").defaults if isinstance(d, Mapping)
    ]
    return next(str(group["hardware"]) for group in groups if "hardware" in group)


def laid_out(
    system: SystemSpec, plain: Mapping[str, Any], deployments: Sequence[Deployment]
) -> SystemSpec:
    """Return the system with its instances over the pair, where its settings say how."""
    settings = plain["system"].get("layout")
    if settings is None:
        return system
    if not isinstance(settings, Mapping):
        raise SettingError("system.layout", settings, "a mapping with the key way, or null")
    from c2c.systems.tessera import pair_layout, pair_of

    pair = pair_of(plain["pair"])
    if len(deployments) > 1:
        raise SettingError(
            "catalog", [d.name for d in deployments], "one model: the pair keeps its weights"
        )
    layout = pair_layout(settings, pair, deployments[0].spec, rows=system.max_batch)
    window_s = getattr(system.vary, "window_s", math.inf)
    if window_s < layout.switch_s:
        warnings.warn(
            f"system.vary.window_s={window_s}: a switch takes longer, {layout.switch_s} s",
            stacklevel=2,
        )
    return replace(system, layout=layout)
