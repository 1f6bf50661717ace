"""Ops that a checkout may not have yet: their cases are skipped with that as the reason."""

from __future__ import annotations

import importlib
from typing import Any

from experiments.gpu.cases import Unmeasurable


def op(package: str, name: str) -> Any:
    """Return the function `name` of `pallas_kernels.<package>`.

    Raises:
      Unmeasurable: there is none.
    """
    module = f"pallas_kernels.{package}"
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise  # it exists and misses something else
        raise Unmeasurable(f"{module} is not in this checkout") from error
    except AttributeError as error:
        raise Unmeasurable(f"{module} has no {name} in this checkout") from error
