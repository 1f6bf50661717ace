"""Named kernel families: tile shapes from `conf/kernel/*.yaml`."""

from typing import Any

import yaml

from c2c.cost.tiles import KernelTiles, Tiles
from c2c.errors import DataError, SettingError
from c2c.hardware import conf_dir

__all__ = ["kernel_names", "load_kernel"]


def kernel_names() -> tuple[str, ...]:
    """Return the names of the available kernel families."""
    return tuple(sorted(p.stem for p in (conf_dir() / "kernel").glob("*.yaml")))


def load_kernel(name: str = "hybrid") -> KernelTiles:
    """Return the tile shapes of a kernel family.

    Raises:
      SettingError: unknown name or tile shape.
      DataError: the file is not a kernel description.
    """
    if name not in kernel_names():
        raise SettingError("kernel", name, f"one of {', '.join(kernel_names()) or '(none found)'}")
    path = conf_dir() / "kernel" / f"{name}.yaml"
    data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or set(data) != {"name", "cluster", "sym", "asym"}:
        raise DataError(str(path), "expected name, cluster, sym and asym")
    try:
        sym, asym = Tiles(**data["sym"]), Tiles(**data["asym"])
    except TypeError as err:
        raise DataError(str(path), f"not a tile shape: {err}") from err
    return KernelTiles(name=data["name"], cluster=data["cluster"], sym=sym, asym=asym)
