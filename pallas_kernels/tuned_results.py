"""Files of measured rates."""

from __future__ import annotations

import json
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FOLDER_VARIABLE = "PALLAS_KERNELS_TUNED"
FORMAT = 3

_PACKAGE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Measured rates: fields of `gemm.Machine`, and `source`."""

    device: str
    machine: Mapping[str, Any] = field(default_factory=dict)


def file_name(device: str) -> str:
    """Return the name of a device's file.

    >>> file_name("NVIDIA H200")
    'nvidia_h200.json'
    """
    return re.sub(r"[^a-z0-9.]+", "_", device.lower()).strip("_") + ".json"


def folders() -> tuple[Path, ...]:
    """Return the files' folders: `PALLAS_KERNELS_TUNED`, then this package's."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return (*((Path(folder),) if folder else ()), _PACKAGE / "tuned")


def load(device: str) -> Tuned:
    """Return a device's rates."""
    machine: dict[str, Any] = {}
    for path in (folder / file_name(device) for folder in folders()):
        if not path.exists():
            continue
        try:
            one = read(path)
            if one.device != device:
                raise ValueError(f"device={one.device!r}: expected {device!r}")
        except (OSError, ValueError) as error:
            warnings.warn(f"measured rates {path} left aside: {error}", stacklevel=2)
            continue
        machine = {**one.machine, **machine}
    return Tuned(device=device, machine=machine)


def read(path: Path) -> Tuned:
    """Return the rates in one file.

    Raises:
      OSError: an unreadable file.
      ValueError: no measured rates.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"format={data['format']!r}: expected {FORMAT}")
        return Tuned(device=str(data["device"]), machine=_checked_machine(data["machine"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"expected a file of measured rates: {error!r}") from error


def write(path: Path, tuned: Tuned) -> None:
    """Replace the file atomically."""
    text = json.dumps({"format": FORMAT, **asdict(tuned)}, indent=1, allow_nan=False)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=path.stem, suffix=".part", delete=False
    ) as file:
        file.write(f"{text}\n")
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


def _checked_machine(data: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, value in data.items():
        if name == "source":
            good = isinstance(value, str)
        else:
            good = isinstance(value, int | float) and 0 < value < float("inf")
        if not good:
            raise ValueError(f"machine.{name}={value!r}: expected a number above 0")
    return dict(data)
