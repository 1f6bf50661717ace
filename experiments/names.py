"""Models and chips by the names that people type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from c2c.errors import SettingError, unknown_name
from c2c.hardware import platforms
from c2c.models import ModelSpec, catalog_names, load_spec

__all__ = ["CHIPS", "chip_named", "chip_of", "model_named", "model_of"]

# Vidur's A100 is a PCIe card: its GEMMs of 4096 rows reach 230 TFLOP/s, an A100 SXM's 270.
CHIPS: Final[Mapping[str, str]] = {
    "a100": "a100_80", "a100_pcie": "a100_80", "a100_80gb_pcie": "a100_80",
    "a100_sxm4": "a100_sxm", "h100": "h100_sxm", "h100_sxm5": "h100_sxm", "h200": "h200_pcie5",
    "h200_sxm": "h200_pcie5", "b200_sxm": "b200", "b300_sxm": "b300",
    "rtx_pro_6000_server": "rtx_pro_6000", "rtx6000_pro": "rtx_pro_6000",
    "rtx_6000": "rtx_pro_6000",
}  # fmt: skip

# Models of a shipped shape, without their organisation and suffixes, with their longest context.
_SHAPES: Final[Mapping[str, tuple[str, int]]] = {
    "llama-3.1-8b": ("llama-3-8b", 131072), "llama-3.1-70b": ("llama-3-70b", 131072),
    "llama-3.3-70b": ("llama-3-70b", 131072), "llama-3.2-3b": ("llama-3-3b", 131072),
    "deepseek-r1": ("deepseek-v3", 163840), "deepseek-v3.1": ("deepseek-v3", 163840),
    "deepseek-v3-0324": ("deepseek-v3", 163840), "deepseek-r1-0528": ("deepseek-v3", 163840),
    "mixtral-8x7b-v0.1": ("mixtral-8x7b", 32768),
}  # fmt: skip
_SUFFIXES: Final = ("-instruct", "-chat", "-it", "-hf")


def chip_of(name: str) -> str | None:
    """Return the platform of a chip's name, or None."""
    plain = name.lower().replace("-", "_").replace(" ", "_")
    chip = CHIPS.get(plain, plain)
    return chip if chip in platforms() else None


def chip_named(name: str, field: str = "chip") -> str:
    """Return the platform of a chip's name."""
    if (result := chip_of(name)) is None:
        raise unknown_name(field, name, sorted({*platforms(), *CHIPS}))
    return result


def model_of(name: str) -> ModelSpec | None:
    """Return the shape of a model's public name or path, or None."""
    if Path(name).exists():
        return load_spec(name)
    plain = name.rpartition("/")[2].lower().removeprefix("meta-")
    for suffix in _SUFFIXES:
        plain = plain.removesuffix(suffix)
    if plain in _SHAPES:
        shape, context = _SHAPES[plain]
        return replace(load_spec(shape), name=plain, max_position=context)
    return load_spec(plain) if plain in catalog_names() else None


def model_named(name: str, field: str = "model") -> ModelSpec:
    """Return the shape of a model's public name or path."""
    if (result := model_of(name)) is None:
        error = unknown_name(field, name, sorted({*catalog_names(), *_SHAPES}))
        hint = f"{error.hint} Or the path of a folder with its config.json.".strip()
        raise SettingError(field, name, error.allowed, hint)
    return result
