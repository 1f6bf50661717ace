"""Kernels over narrow weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from c2c.cost.constants import Constants
from c2c.errors import DataError
from c2c.hardware import conf_dir, conf_names, read_yaml

__all__ = ["KERNELS", "Kernel", "kernel_of", "kernels"]

KERNELS: Final = ("fp8", "fp8_block", "nvfp4", "mxfp4", "int4")
_KEYS = {"operand_bytes", "source", "constants"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Kernels of one precision, with `operand_bytes` on the tensor cores.

    `constants` replace those of the chip's calibration.
    """

    operand_bytes: float
    constants: Mapping[str, float]
    source: str


def kernels(chip: str) -> Mapping[str, Kernel]:
    """Return the kernels of a calibration's chip by precision; none if it has no file.

    Raises:
      DataError: the file describes no kernels.
    """
    return _kernels(chip, conf_dir())


@cache
def _kernels(chip: str, _folder: Path) -> Mapping[str, Kernel]:
    if chip not in conf_names("kernels"):
        return {}
    data, where = read_yaml("kernels", chip), f"conf/kernels/{chip}.yaml"
    if set(data) == {"like"}:
        return _kernels(str(data["like"]), _folder)
    return {name: _kernel(name, entry, f"{where}: {name}") for name, entry in data.items()}


# A chip computes in a precision if its file has a section for it. Without one, weights are widened:
# the kernel is the 16-bit one, over the stored bytes.
def kernel_of(constants: Constants, name: str, width: float) -> tuple[Constants, float]:
    """Return a precision's constants and operand width, 16 bits by default."""
    if (kernel := kernels(constants.name).get(name)) is None:
        return constants, width
    return constants.having(kernel.constants), kernel.operand_bytes


def _kernel(name: str, entry: Any, where: str) -> Kernel:
    if name not in KERNELS:
        raise DataError(where, f"expected one of {', '.join(KERNELS)}")
    if not isinstance(entry, Mapping) or set(entry) != _KEYS or not entry["source"]:
        raise DataError(where, f"expected {', '.join(sorted(_KEYS))}")
    values = entry["constants"]
    if not isinstance(values, Mapping) or not all(
        str(key).startswith(("gemm_", "expert_")) and isinstance(value, float) and value >= 0
        for key, value in values.items()
    ):
        raise DataError(f"{where}: constants", "expected numbers by names gemm_* and expert_*")
    width = entry["operand_bytes"]
    if width not in (0.5, 1, 2):
        raise DataError(f"{where}: operand_bytes", f"expected 0.5, 1 or 2, found {width!r}")
    return Kernel(operand_bytes=float(width), constants=dict(values), source=str(entry["source"]))
