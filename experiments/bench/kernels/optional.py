"""Ops that a checkout may not have yet: their cases are skipped with that as the reason."""

from __future__ import annotations

import importlib
from typing import Any

from experiments.gpu.worker import Unmeasurable


def op(package: str) -> Any:
    """Return `pallas_kernels.<package>`.

    Raises:
      Unmeasurable: there is none.
    """
    name = f"pallas_kernels.{package}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise  # it exists and misses something else
        raise Unmeasurable(f"{name} is not in this checkout") from error
