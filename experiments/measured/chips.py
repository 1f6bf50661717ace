"""Platforms of measured chips by the measurements' `system` column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any, Final

from c2c.cost import Constants, calibration_for, kernel_of, load_constants
from c2c.hardware import Slice, conf_dir, load_platform, slices
from experiments.names import chip_of

__all__ = ["FITTED", "Chip", "chip_of", "shipped", "whole"]

FITTED: Final = ("a100_sxm", "h100_sxm", "gb200", "l40s")
"""Chips with rows of their own, which GEMM and attention are fitted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A whole chip and its constants."""

    platform: str
    slice_: Slice
    constants: Constants

    def at(self, kernel: str) -> Chip:
        """Return the chip with a precision's constants, see `conf/kernels`."""
        return replace(self, constants=kernel_of(self.constants, kernel, 2)[0])

    def trying(self, values: Mapping[str, float]) -> Chip:
        """Return the chip with other, unchecked constants."""
        constants = {f.name: getattr(self.constants, f.name) for f in fields(self.constants)}
        unchecked: Any = SimpleNamespace(**{**constants, **values})
        return replace(self, constants=unchecked)


def shipped() -> set[str]:
    """Return the project's chips, with rows and constants."""
    return {path.stem for path in (conf_dir() / "hardware").glob("*.yaml")}


def whole(platform: str, constants: Constants | None = None) -> Chip:
    """Return a platform's undivided chip, by default its calibration."""
    hardware = load_platform(platform)
    return Chip(
        platform=platform,
        slice_=slices(hardware, hardware.mig[0])[0],
        constants=load_constants(calibration_for(platform)) if constants is None else constants,
    )
