"""Platforms of measured chips by the measurements' `system` column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any, Final

from c2c.cost import Constants, calibration_for, load_constants
from c2c.hardware import Slice, load_platform, platforms, slices

__all__ = ["FITTED", "Chip", "chip_of", "whole"]

# Names that sources use for platforms. Vidur's A100 is a PCIe card: its GEMMs of 4096 rows reach
# 230 TFLOP/s, while an A100 SXM reaches 270.
_ALIASES: Final[Mapping[str, str]] = {
    "a100": "a100_80",
    "a100_pcie": "a100_80",
    "a100_80gb_pcie": "a100_80",
    "a100_sxm4": "a100_sxm",
    "h100": "h100_sxm",
    "h100_sxm5": "h100_sxm",
    "h200": "h200_pcie5",
    "h200_sxm": "h200_pcie5",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "rtx_pro_6000_server": "rtx_pro_6000",
    "rtx6000_pro": "rtx_pro_6000",
}

FITTED: Final = ("a100_sxm", "h100_sxm", "gb200", "l40s")
"""Chips with rows of their own, which GEMM and attention are fitted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A whole chip and its constants."""

    platform: str
    slice_: Slice
    constants: Constants

    def traced(self, values: Mapping[str, Any]) -> Chip:
        """Return the chip with traced jax values for some constants, which are not validated."""
        known = {f.name: getattr(self.constants, f.name) for f in fields(self.constants)}
        unchecked: Any = SimpleNamespace(**{**known, **values})
        return replace(self, constants=unchecked)


def whole(platform: str, constants: Constants | None = None) -> Chip:
    """Return the undivided chip of a platform; its own calibration if `constants` is None."""
    known = load_platform(platform)
    return Chip(
        platform=platform,
        slice_=slices(known, known.mig[0])[0],
        constants=load_constants(calibration_for(platform)) if constants is None else constants,
    )


def chip_of(system: str) -> str | None:
    """Return the platform of a measurement's system, or None if there is none."""
    name = _ALIASES.get(system, system)
    return name if name in platforms() else None
